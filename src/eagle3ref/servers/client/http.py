"""One exchange with a server: an answer, or a sentence that says why there is none and whether to try again."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eagle3ref.errors import Eagle3RefError

if TYPE_CHECKING:
    import httpx

_LARGEST = 256 * 2**20  # bytes; an answer of token ids has a thousandth of that
_SHOWN = 200  # characters of an answer that is no JSON
_CONNECT = 10.0  # seconds until a connection stands; what was never sent must not count as sent
PATIENCE = 30.0  # seconds for a page that the server makes without the model


@dataclass(frozen=True)
class Answer:
    """A response with status 200.

    Args:
        text: its body.
        seconds: from the sending of the request to the last byte.
    """

    text: str
    seconds: float


@dataclass(frozen=True)
class Failure:
    """No usable response.

    Args:
        why: a sentence, without its full stop.
        again: whether the same request may succeed later.
        sent: whether the request may have reached the server; only a refused connection rules it out.
        status: of HTTP; None if there was no complete response.
        wait: seconds that the server asked to wait; 0 if it did not.
    """

    why: str
    again: bool
    sent: bool = True
    status: int | None = None
    wait: float = 0.0

    @property
    def for_all(self) -> bool:
        """Whether every other request would fail likewise: a wrong key, or a wrong address."""
        return self.status in (401, 403, 404, 405) or (self.status or 0) // 100 == 3


class Connection:
    """To one server; an asynchronous context.

    Args:
        url: ``http://host:port``, with a path if the server stands under one. A closing ``/v1`` is dropped: it is part
            of every path that is asked for.
        api_key: sent as a bearer token; None for none.

    Raises:
        Eagle3RefError: httpx is not installed, or no http or https URL of a host, a port and a path.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        try:
            import httpx
        except ImportError as error:
            raise Eagle3RefError(
                f"asking the server {url}",
                found="no httpx",
                expected="the package httpx",
                action="Install eagle3ref[servers].",
            ) from error
        self.url = _base(url)
        try:
            parts = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise _no_url(url, str(error)) from error
        if parts.userinfo:  # it would stand in the journal, and in every message
            raise _no_url(f"{parts.scheme}://…@{parts.host}", "a user or password, which only the API key may be")
        if parts.port is not None and not 0 < parts.port < 65536:
            raise _no_url(url, "no port between 1 and 65535")
        if parts.query or parts.fragment:
            raise _no_url(url, "a query or fragment, behind which no path can be put")
        self._errors = httpx
        self._client = httpx.AsyncClient(
            headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
            # Never twice over one connection: a server that closes an idle one would cost a request of the budget.
            limits=httpx.Limits(max_keepalive_connections=0, max_connections=None),
            timeout=httpx.Timeout(None, connect=_CONNECT),  # each exchange has its own besides, start to end
        )

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def get(self, path: str) -> Answer | Failure:
        """A page."""
        return await self._exchange("GET", path, None, PATIENCE)

    async def post(self, path: str, body: dict[str, Any], timeout: float) -> Answer | Failure:
        """What the server answers to a JSON body."""
        return await self._exchange("POST", path, json.dumps(body).encode(), timeout)

    async def _exchange(self, method: str, path: str, body: bytes | None, timeout: float) -> Answer | Failure:
        started = asyncio.get_running_loop().time()
        headers = {} if body is None else {"Content-Type": "application/json"}
        request = self._client.build_request(method, self.url + path, content=body, headers=headers)
        try:
            # httpx counts a timeout anew with every piece; a server that drips would never end.
            response, data = await asyncio.wait_for(self._send(request), timeout)
        except (TimeoutError, asyncio.TimeoutError):  # two types until Python 3.11
            return Failure(f"no answer within {timeout:g} s", again=True)
        except (self._errors.ConnectError, self._errors.ConnectTimeout) as error:
            return Failure(f"no connection: {_words(error)}", again=True, sent=False)
        except self._errors.HTTPError as error:
            return Failure(f"the connection broke: {_words(error)}", again=True)
        if data is None:
            return Failure(f"an answer of more than {_LARGEST} bytes", again=False, status=response.status_code)
        text = data.decode("utf-8", errors="replace")
        if response.status_code != 200:
            return _refused(response, text)
        return Answer(text, asyncio.get_running_loop().time() - started)

    async def _send(self, request: httpx.Request) -> tuple[httpx.Response, bytes | None]:
        """The response and its body; None for the body if it is too large to take in."""
        response = await self._client.send(request, stream=True)
        try:
            data = bytearray()
            async for piece in response.aiter_bytes():
                data += piece
                if len(data) > _LARGEST:
                    return response, None
            return response, bytes(data)
        finally:
            await response.aclose()


def json_object(answer: Answer) -> dict[str, Any] | Failure:
    """The JSON object that an answer is; a Failure that shows what came instead."""
    try:
        value = json.loads(answer.text)
    except (ValueError, RecursionError):
        shown = " ".join(answer.text.split())[:_SHOWN]
        kind = "HTML" if shown[:1] == "<" else "JSON that is cut or damaged" if shown[:1] in "{[" else "text"
        return Failure(f"{kind} instead of a JSON object: {shown!r}", again=True, status=200)
    if not isinstance(value, dict):
        return Failure(f"JSON of type {type(value).__name__} instead of an object", again=False, status=200)
    return value


def _base(url: str) -> str:
    base = url.strip().rstrip("/").removesuffix("/v1").rstrip("/")
    scheme, mark, rest = base.partition("://")
    if mark and scheme.lower() in ("http", "https") and rest and not rest.startswith("/") and " " not in base:
        return base
    raise _no_url(url, "no http or https URL")


def _no_url(url: str, why: str) -> Eagle3RefError:
    return Eagle3RefError(
        "reading the address of the server",
        found=f"{url!r} ({why})",
        expected="a URL such as http://localhost:30000",
        action="Write it with http:// or https:// and its port.",
    )


def _refused(response: httpx.Response, text: str) -> Failure:
    status = response.status_code
    said = " ".join(_message(text).split())[:_SHOWN]
    # A page for people says nothing more.
    why = f"HTTP {status}" + (" with HTML" if said.startswith("<") else f": {said}" if said else "")
    if status // 100 == 3:
        why = f"HTTP {status}, a redirection to {response.headers.get('location', 'nowhere')}"
    return Failure(why, again=status in (408, 429) or status >= 500, status=status, wait=_seconds(response))


def _message(text: str) -> str:
    """The words of an error in JSON, wherever a server puts them; else the text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    for key in ("error", "message", "detail"):
        if isinstance(value, dict) and value.get(key):
            value = value[key]
    return value if isinstance(value, str) else json.dumps(value)


def _seconds(response: httpx.Response) -> float:
    """Of the header Retry-After; the form that is a date counts as none."""
    try:
        wait = float(response.headers.get("retry-after", "0"))
    except ValueError:
        return 0.0
    return wait if 0 <= wait < float("inf") else 0.0


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
