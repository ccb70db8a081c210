"""The errors of OAuth requests and clients, with the codes of RFC 6749, 7009, 7591 and 8707."""

from typing import Literal

OAuthErrorCode = Literal[
    "invalid_client",
    "invalid_grant",
    "invalid_request",
    "invalid_target",
    "unsupported_grant_type",
    "unsupported_response_type",
]

ClientErrorCode = Literal["invalid_client", "invalid_client_metadata", "invalid_redirect_uri"]


class OAuthError(Exception):
    """A refused OAuth request; `message` says what to do next and contains no secret."""

    def __init__(self, error: OAuthErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message

    @property
    def status(self) -> int:
        """The HTTP status at the token endpoint; 401 makes hosts register again."""
        return 401 if self.error == "invalid_client" else 400


class OAuthClientError(Exception):
    """A client that cannot be used, or a registration that is refused.

    `error` is the code of RFC 6749 or RFC 7591. The message says what is accepted or what to do
    next, in the characters that `error_description` allows, and repeats no text of the client.
    """

    def __init__(self, error: ClientErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message
