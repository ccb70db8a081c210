"""A service names its operator wherever a user needs them, and says what works without a name."""

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from access.billing.provider import NoBilling
from schemas.errors import unavailable_error
from schemas.operator import Operator
from tests.support.example_market import make_coverage
from tests.support.openapi_document import fetch_document
from tests.support.running_service import RunningService, break_usage_counting, run_service
from tests.support.signals_command import (
    ROOT,
    RunningCommand,
    build_environment,
    find_free_port,
)
from tests.support.web_page import buy_plan, check_page, request_link

ACME = Operator(
    "Acme *Signals* & Sons",
    "support@acme.example",
    "https://acme.example/terms?lang=en",
    "https://acme.example/privacy",
)
CONTACT_PAGE = "https://acme.example/support"
INTRODUCTION = "Contact the operator: Acme *Signals* & Sons (support@acme.example)."
CLAIM = {"claim_token": "ct_" + "A" * 43}
CACHE = "public, max-age=60"
PAGES = (
    "/",
    "/assets/BTC",
    "/docs",
    "/docs/getting-started",
    "/docs/legal",
    "/sign-in",
    "/docs/missing",
)


@pytest.fixture
async def named(tmp_path: Path) -> AsyncIterator[RunningService]:
    async with run_service(tmp_path, make_coverage(), operator=ACME) as served:
        yield served


@pytest.mark.clause("4.1.10", "1.48")
@pytest.mark.parametrize(
    ("operator", "shown", "contact"),
    [
        (
            *(ACME, {"name": ACME.name, "contact": ACME.contact}),
            {"name": ACME.name, "email": ACME.contact},
        ),
        (
            *(replace(ACME, contact=CONTACT_PAGE), {"name": ACME.name, "contact": CONTACT_PAGE}),
            {"name": ACME.name, "url": CONTACT_PAGE},
        ),
        (Operator(terms_url=ACME.terms_url), None, None),
        (Operator(name="Acme"), {"name": "Acme"}, {"name": "Acme"}),
        (Operator(contact=CONTACT_PAGE), {"contact": CONTACT_PAGE}, {"url": CONTACT_PAGE}),
    ],
)
async def test_manifest_and_openapi_have_what_is_published_and_never_null(
    tmp_path: Path,
    operator: Operator,
    shown: dict[str, str] | None,
    contact: dict[str, str] | None,
) -> None:
    async with run_service(tmp_path, make_coverage(), operator=operator) as served:
        response = await served.client.get("/api/v1")
        document = await fetch_document(served)
        document.check_response("GET", "/api/v1", response)
        manifest, info = response.json(), document.content["info"]
        assert (manifest.get("operator"), info.get("contact")) == (shown, contact)
        assert ("operator" in manifest, "contact" in info) == (shown is not None,) * 2
        own_page = f"{served.base_url}/legal"
        terms = operator.terms_url or own_page
        assert (manifest["legal"]["terms"], info["termsOfService"]) == (terms, terms)
        assert manifest["legal"]["privacy"] == (operator.privacy_url or own_page)


@pytest.mark.clause("1.48")
async def test_the_legal_page_names_the_operator_in_markdown_and_html(
    named: RunningService,
) -> None:
    section = (await named.client.get("/legal")).text.split("## Operator\n\n")[1]
    assert section.splitlines()[:4] == [
        r"- Name: Acme \*Signals\* \& Sons",
        "- Contact: <support@acme.example>",
        "- Terms: <https://acme.example/terms?lang=en>",
        "- Privacy policy: <https://acme.example/privacy>",
    ]
    assert "POST /api/v1/access-request" in section
    page = check_page(
        await named.get_page("/docs/legal"), 200, "Terms, privacy and licence", cache=CACHE
    )
    assert "Name: Acme *Signals* & Sons" in page.text
    links = [link["href"] for link in page.find_all("a")]
    assert links.count("mailto:support@acme.example") == 2
    assert links.count(ACME.privacy_url) == 2


@pytest.mark.clause("1.48")
@pytest.mark.parametrize("path", PAGES)
async def test_every_page_ends_with_the_operator(named: RunningService, path: str) -> None:
    footer = read_footer((await named.get_page(path)).text)
    assert "Run by Acme *Signals* &amp; Sons" in footer
    for link in ("mailto:support@acme.example", ACME.terms_url, ACME.privacy_url):
        assert f'href="{link}"' in footer


@pytest.mark.clause("1.48")
async def test_a_page_links_to_our_own_terms_if_the_operator_has_none(tmp_path: Path) -> None:
    operator = Operator(contact=CONTACT_PAGE)
    async with run_service(tmp_path, make_coverage(), operator=operator) as served:
        footer = read_footer((await served.get_page("/docs/getting-started")).text)
        assert "Run by" not in footer
        links = re.findall(r'href="([^"]+)"', footer)
        assert links == ["../docs/legal#terms-of-use", "../docs/legal#privacy", CONTACT_PAGE]
        article = check_page(
            await served.get_page("/docs/legal"), 200, "Terms, privacy and licence", cache=CACHE
        )
        assert {"terms-of-use", "privacy"} <= set(article.ids)


@pytest.mark.clause("1.48")
@pytest.mark.prove
async def test_a_page_without_an_operator_links_to_the_page_of_terms(
    served: RunningService,
) -> None:
    article = check_page(
        await served.get_page("/docs/legal"), 200, "Terms, privacy and licence", cache=CACHE
    )
    for path in PAGES:
        footer = read_footer((await served.get_page(path)).text)
        assert "Run by" not in footer
        anchors = re.findall(r'href="(?:\.\.?/)*docs/legal#([a-z-]+)"', footer)
        assert anchors == ["terms-of-use", "privacy", "operator"]
        assert set(anchors) <= set(article.ids)


@pytest.mark.clause("1.48")
async def test_the_sign_in_mail_ends_with_the_operator(named: RunningService) -> None:
    await buy_plan(named)
    await request_link(named)
    mail = await named.mailbox.wait_for_mail()
    assert mail.get_content().rstrip().endswith(f"ignore this e-mail.\n\n{INTRODUCTION}")


@pytest.mark.clause("7.36")
async def test_only_errors_that_the_operator_can_help_with_name_them(named: RunningService) -> None:
    with break_usage_counting(named.access):
        response = await named.get_api("/usage")
        result = await named.call("signals_get_usage")
    assert response.status_code == 503
    assert response.json()["message"].endswith(f"Retry after 60 seconds. {INTRODUCTION}")
    assert json.loads(result["content"][0]["text"]) == response.json()
    for headers, status in (({"host": "x.example"}, 421), ({"origin": "https://x.example"}, 403)):
        response = await named.client.get("/api/v1/state", headers=headers)
        assert response.status_code == status
        assert response.json()["message"].endswith(f". {INTRODUCTION}")
    response = await named.get_api("/state?ticker=NOPE")
    assert response.status_code == 400
    assert "operator" not in response.json()["message"]


@pytest.mark.clause("7.36", "5.30")
async def test_with_billing_off_every_refusal_and_page_names_the_operator(tmp_path: Path) -> None:
    async with run_service(
        tmp_path, make_coverage(), provider=NoBilling(), operator=ACME
    ) as unbilled:
        response = await unbilled.client.get("/api/v1/state")
        result = await unbilled.call("signals_get_state", headers={})
        assert json.loads(result["content"][0]["text"]) == response.json()
        checkout = {"contact_email": "a@example.org"}
        refusals = [
            response,
            await unbilled.client.post("/api/v1/access/checkout", json=checkout),
            await unbilled.client.post("/api/v1/access/claim", json=CLAIM),
        ]
        assert [refusal.status_code for refusal in refusals] == [401, 503, 404]
        for refusal in refusals:
            assert "POST /api/v1/access-request" in refusal.json()["message"]
            assert refusal.json()["message"].endswith(f". {INTRODUCTION}")
        assert (await unbilled.client.get("/api/v1")).json()["auth"]["note"].endswith(INTRODUCTION)
        for path in ("/sign-in", "/docs/getting-started"):
            page = (await unbilled.get_page(path)).text
            assert INTRODUCTION.replace("&", "&amp;") in page


@pytest.mark.clause("7.36")
@pytest.mark.parametrize(
    ("operator", "shown"),
    [
        (Operator(), "It failed."),
        (Operator(name="Acme"), "It failed. The operator is Acme."),
        (Operator(contact="a@b.example"), "It failed. Contact the operator (a@b.example)."),
    ],
)
def test_an_error_says_as_much_as_is_published(operator: Operator, shown: str) -> None:
    assert unavailable_error("It failed.", 5, names_operator=True).describe(operator) == shown


@pytest.mark.clause("7.36")
async def test_an_error_page_names_the_operator(named: RunningService) -> None:
    await named.access.close()
    page = check_page(
        await named.client.post("/sign-in", data={"contact_email": "a@example.com"}),
        503,
        "Temporarily unavailable",
    )
    assert INTRODUCTION in page.text


@pytest.mark.clause("7.36")
async def test_a_program_that_the_service_cannot_look_up_names_who_can_help(
    named: RunningService,
) -> None:
    query = {"client_id": "https://client.invalid/a.json", "redirect_uri": "https://x.example"}
    page = check_page(
        await named.client.get("/oauth/authorize", params=query), 400, "Something went wrong"
    )
    assert "ask its operator" in page.text
    assert INTRODUCTION in page.text


def read_footer(html: str) -> str:
    return re.search(r"<footer>.*</footer>", html, re.DOTALL)[0]


LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", "__pycache__", "*.egg-info", "*.db*"
)
INSTALLED_MB = 260


def serve_until_ready(checkout: Path, port: str) -> list[str]:
    """Return what `make serve` prints until it answers."""
    env = {**build_environment(checkout, port=port), "PYTHONPATH": ""}
    del env["SIGNALS_DATABASE_URL"]
    with RunningCommand.start(checkout, "make", "--silent", "serve", env=env) as process:
        process.wait_for_line("--header")
        process.wait_until_caught_up()
        manifest = httpx.get(f"http://127.0.0.1:{port}/api/v1").json()
        assert f"  {manifest['mcp']['registration']}\n" in process.printed
        # A terminal sends its interrupt to make and to what make runs.
        os.killpg(process.process.pid, 2)
        process.wait_for_exit()
    assert "Traceback" not in "".join(process.printed)
    return process.printed


@pytest.mark.clause("operation")
@pytest.mark.prove
@pytest.mark.long
def test_make_serve_builds_history_at_the_first_start_only(tmp_path):
    checkout = Path(shutil.copytree(ROOT, tmp_path / "checkout", ignore=LEFT_OUT))
    installing = subprocess.run(
        ["make", ".venv/installed"],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert installing.returncode == 0, installing.stderr
    installed = subprocess.check_output(["du", "-sm", checkout / ".venv"], text=True)
    assert int(installed.split()[0]) < INSTALLED_MB, installed
    port = find_free_port()
    first, second = (serve_until_ready(checkout, port) for _ in range(2))
    assert [line for line in first if line.startswith("building history: ")]
    assert not [line for line in second if "building history" in line]
    with socket.create_server(("127.0.0.1", int(port))):
        refused = subprocess.run(
            ["make", "--silent", "serve"],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": "", "SIGNALS_PORT": port},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert refused.returncode != 0
    (line,) = (line for line in refused.stderr.splitlines() if not line.startswith("make"))
    assert f"port {port}" in line
