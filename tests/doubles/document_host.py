"""A host of client metadata documents on a loopback port, certified by a private authority.

    async with open_document_host() as host:
        host.responses["/client.json"] = build_response(document)
        documents = ClientDocuments(clock, host.transport, host.resolve)

It also plays the DNS and the network: names resolve to the addresses in `addresses`, public ones by
default, and connections to any address end at this host, which keeps a list of them.
"""

import asyncio
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import httpx2
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from access.oauth.clients import create_transport

HOST = "client.example"
PUBLIC_ADDRESSES = ("2606:2800:21f::1", "93.184.215.14")

Responder = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class DocumentHost:
    """Responses by path, as bytes or as a function that writes them; other paths get 404.

    `requests` are the heads received, `connections` the addresses and ports dialled, and
    `unreachable` the addresses at which nothing answers.
    """

    ssl_context: ssl.SSLContext
    port: int = 0
    responses: dict[str, bytes | Responder] = field(default_factory=dict)
    addresses: dict[str, Sequence[str]] = field(default_factory=lambda: {HOST: PUBLIC_ADDRESSES})
    unreachable: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    lookups: list[str] = field(default_factory=list)
    connections: list[tuple[str, int | None]] = field(default_factory=list)

    @property
    def transport(self) -> httpx2.AsyncBaseTransport:
        """The service's transport, with connections to every address redirected to this host."""
        return _RedirectedTransport(self, create_transport(self.ssl_context))

    async def resolve(self, host: str) -> Sequence[str]:
        """Return the addresses of a host, as a DNS server would."""
        self.lookups.append(host)
        if host not in self.addresses:
            raise OSError("Name or service not known")
        return self.addresses[host]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close the connection."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.requests.append(head)
            response = self.responses.get(head.split()[1], build_response({}, status=404))
            if isinstance(response, bytes):
                writer.write(response)
                await writer.drain()
            else:
                await response(writer)
        writer.transport.abort() if writer.is_closing() else writer.close()


@dataclass
class _RedirectedTransport(httpx2.AsyncBaseTransport):
    _host: DocumentHost
    _transport: httpx2.AsyncBaseTransport

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self._host.connections.append((request.url.host, request.url.port))
        if request.url.host in self._host.unreachable:
            raise httpx2.ConnectError("All connection attempts failed")
        request.url = request.url.copy_with(host="127.0.0.1", port=self._host.port)
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        await self._transport.aclose()


def build_response(
    document: object, status: int = 200, headers: dict[str, str] | None = None
) -> bytes:
    """Return a complete HTTP response with a document as JSON, or with a body as it is."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    fields = {
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **(headers or {}),
    }
    lines = [f"HTTP/1.1 {status} Status", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


@asynccontextmanager
async def open_document_host(names: Iterable[str] = (HOST,)) -> AsyncIterator[DocumentHost]:
    """Serve on a free loopback port, with a certificate for the names.

    Each tuple of names has an authority of its own.
    """
    client_context, server_context = _create_ssl_contexts(tuple(names))
    host = DocumentHost(client_context)
    server = await asyncio.start_server(host.serve, "127.0.0.1", 0, ssl=server_context)
    host.port = server.sockets[0].getsockname()[1]
    try:
        yield host
    finally:
        server.close()


@cache
def _create_ssl_contexts(names: tuple[str, ...]) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the context of a client that trusts the authority, and that of the server."""
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = issue_certificate("authority", authority_key, authority_key, [], is_authority=True)
    certificate = issue_certificate("host", server_key, authority_key, names, is_authority=False)
    client_context = ssl.create_default_context(cadata=authority.decode())
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "host.pem"
        path.write_bytes(encode_key(server_key) + certificate)
        server_context.load_cert_chain(path)
    return client_context, server_context


def encode_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def issue_certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    hosts: Iterable[str],
    *,
    is_authority: bool,
) -> bytes:
    """Return a certificate in PEM, valid for a day around now."""
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        # Python 3.13 accepts no certificate without the extensions that RFC 5280 requires.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                key_cert_sign=is_authority,
                crl_sign=is_authority,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
    )
    names = [x509.DNSName(host) for host in hosts]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
