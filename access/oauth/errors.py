"""The error of an OAuth request, with the codes of RFC 6749, 7009 and 8707."""

from typing import Literal

OAuthErrorCode = Literal[
    "invalid_client",
    "invalid_grant",
    "invalid_request",
    "invalid_target",
    "unsupported_grant_type",
    "unsupported_response_type",
]


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
