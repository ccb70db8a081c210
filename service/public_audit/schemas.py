"""Checks every response against the schema that the service's OpenAPI document has for it."""

from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from service.public_audit.answers import Json, Report, Responses, format_value

DOCUMENT_URI = "urn:openapi"


def check_schemas(responses: Responses, report: Report) -> None:
    """Check each response against its published schema; report the most relevant difference."""
    document = DRAFT202012.create_resource(responses.openapi)
    registry: Registry[Any] = Registry().with_resource(DOCUMENT_URI, document)
    validators: dict[str, Draft202012Validator] = {}
    for name, view, body in responses.iterate_named():
        validator = validators.setdefault(view, _build_validator(view, registry))
        # The schemas come from the service, so anything may be wrong with them.
        try:
            error = best_match(validator.iter_errors(body))
        except Exception as failure:
            report.add_finding(
                f"{name}: the OpenAPI document has no usable schema ({type(failure).__name__})"
            )
            continue
        if error is not None:
            report.add_finding(
                f"{name}: {error.json_path} does not match the OpenAPI document: "
                f"{error.validator} {format_value(error.validator_value)}"
            )
        report.checked["answers held against their schema"] += 1


def _build_validator(view: str, registry: "Registry[Any]") -> Draft202012Validator:
    """Return a validator of the responses with status 200 of a view."""
    path = f"~1api~1v1~1{view}/get/responses/200/content/application~1json/schema"
    schema: Json = {"$ref": f"{DOCUMENT_URI}#/paths/{path}"}
    return Draft202012Validator(schema, registry=registry)
