"""Files over HTTP: continued after a break, checked, and given their name only when complete."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO, Any, BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from attrs import define, field, frozen

from ramforge_core import __version__
from ramforge_core.errors import DownloadError
from ramforge_core.files import publish, require_space

_CHUNK_BYTES = 1 << 20
_TIMEOUT_S = 30.0
_PATIENCE = 4
"""Attempts in a row that may bring nothing new before a download is given up."""
_LONGEST_WAIT_S = 60.0
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers that another attempt may turn into a good one."""


@frozen
class RemoteFile:
    """What a server says of a file before it sends it.

    label : how messages call it.
    n_bytes : size, None if the server does not say.
    sha256 : checksum of the content, None if the server does not say.
    etag : the server's mark of this version of the file, good for ``If-Range``; None if there is none.
    """

    url: str
    label: str
    n_bytes: int | None
    sha256: str | None
    etag: str | None

    @property
    def version(self) -> str | None:
        """Names partial files, so that a transfer is continued only with the file that it began with."""
        mark = self.sha256 or self.etag
        return hashlib.sha256(mark.encode()).hexdigest()[:16] if mark else None


class _Transient(Exception):
    """Worth another attempt; ``wait_s`` is what the server asks for."""

    def __init__(self, what: str, wait_s: float = 0.0) -> None:
        super().__init__(what)
        self.wait_s = wait_s


class _Redirects(HTTPRedirectHandler):
    """Keeps the method, never falls back to plain HTTP, and shows the token to no other host.

    HEAD stays on its host: what the hub says of a file is in its own answer, and where it points to is signed for GET.
    """

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl.replace(" ", "%20"))
        if new.scheme != "https" and new.scheme != old.scheme:
            fp.close()
            raise DownloadError(
                f"{old.netloc} redirects to {new.scheme}://{new.netloc}, which is not encrypted"
            )
        same_host = (old.scheme, old.netloc) == (new.scheme, new.netloc)
        if req.get_method() == "HEAD" and not same_host:
            return None
        kept = {k: v for k, v in req.headers.items() if same_host or k.lower() != "authorization"}
        return Request(new.geturl(), headers=kept, method=req.get_method())


@define
class Hub:
    """A server that files are fetched from.

    token : sent to the endpoint's host only.
    sleep : waits between attempts; tests replace it.
    """

    endpoint: str
    token: str | None = field(default=None, repr=False)
    sleep: Callable[[float], None] = time.sleep
    _opener: Any = field(factory=lambda: build_opener(_Redirects()), init=False, repr=False)

    def look_up(self, url: str, label: str) -> RemoteFile:
        """Ask what ``url`` is. Raises DownloadError if it is not there or not for us."""
        headers = self._patiently(label, lambda: self._head(url, label))
        linked_size, linked_etag = headers.get("X-Linked-Size"), headers.get("X-Linked-Etag", "").strip('"')
        sha256 = linked_etag if re.fullmatch(r"[0-9a-f]{64}", linked_etag) else None
        size = linked_size or headers.get("Content-Length")
        etag = headers.get("ETag")
        if etag is not None and etag.startswith("W/"):
            etag = None  # weak: other bytes may have the same one
        return RemoteFile(url, label, int(size) if size and size.isdigit() else None, sha256, etag)

    def download(self, remote: RemoteFile, target: Path, progress: Callable[[int], None]) -> None:
        """Fetch to ``target``; on failure a ``.part`` file stays that the next call continues.

        progress : called with bytes so far. Raises DownloadError.
        """
        part = target.with_name(f"{target.name}.{remote.version or 'unmarked'}.part")
        for stale in target.parent.glob("*.part"):
            if stale.name.startswith(f"{target.name}.") and stale != part:
                stale.unlink(missing_ok=True)
        with part.open("ab") as file, _sole_writer(file, remote.label):
            transfer = _Transfer(self, remote, file, progress)
            transfer.load()
            require_space(target.parent, max((remote.n_bytes or 0) - transfer.done, 0))
            while not transfer.complete:
                self._patiently(remote.label, transfer.attempt)
            file.flush()
            os.fsync(file.fileno())
            fault = transfer.fault()
        if fault:
            part.unlink()
            raise DownloadError(
                f"what arrived for {remote.label} is not what was asked for: {fault}; it was not kept"
            )
        publish(part, target)

    def open(self, url: str, label: str, method: str, headers: dict[str, str]) -> HTTPResponse:
        """One request. Raises _Transient where another attempt may help, else DownloadError or HTTPError (3xx, 416)."""
        sent = {"User-Agent": f"ramforge/{__version__}", **headers}
        if self.token and urlsplit(url).netloc == urlsplit(self.endpoint).netloc:
            sent["Authorization"] = f"Bearer {self.token}"
        try:
            response: HTTPResponse = self._opener.open(
                Request(url, headers=sent, method=method), timeout=_TIMEOUT_S
            )
        except HTTPError as error:
            if error.code in (301, 302, 303, 307, 308, 416):
                raise
            error.close()
            if error.code in _BUSY:
                wait = error.headers.get("Retry-After", "")
                raise _Transient(
                    f"the server answered {error.code} {error.reason}", float(wait) if wait.isdigit() else 0.0
                ) from error
            raise DownloadError(_refusal(label, error, with_token="Authorization" in sent)) from error
        except DownloadError:  # of `_Redirects`; it is an OSError too
            raise
        except (URLError, HTTPException, OSError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise _Transient(
                f"no connection to {urlsplit(url).netloc} ({reason or type(reason).__name__})"
            ) from error
        return response

    def _head(self, url: str, label: str) -> Message:
        try:
            with self.open(url, label, "HEAD", {}) as response:
                return response.headers
        except HTTPError as error:
            error.close()
            if "X-Linked-Size" not in error.headers:
                # A plain server that redirects elsewhere: sizes and marks come with the GET.
                return Message()
            del error.headers["ETag"]  # that of the redirect, not of what it leads to
            return error.headers

    def _patiently(self, label: str, attempt: Callable[[], Any]) -> Any:
        """Call until it succeeds; `_PATIENCE` attempts in a row that brought nothing are enough."""
        for failed in range(1, _PATIENCE + 1):
            try:
                return attempt()
            except _Transient as error:
                if failed == _PATIENCE:
                    raise DownloadError(
                        f"cannot fetch {label}: {error}, {_PATIENCE} times; try again later, "
                        "what has arrived is kept"
                    ) from error
                self.sleep(min(max(error.wait_s, 2.0 ** (failed - 1)), _LONGEST_WAIT_S))
        raise AssertionError  # not reached: the last attempt returns or raises


@define
class _Transfer:
    """The growing partial file of one download."""

    hub: Hub
    remote: RemoteFile
    file: BinaryIO
    progress: Callable[[int], None]
    done: int = 0
    complete: bool = False
    _digest: Any = field(factory=hashlib.sha256)

    def load(self) -> None:
        """Take over what an earlier call left, if it is of the same version; its bytes count in the checksum."""
        self.done = self.file.tell()
        if self.remote.version is None or (
            self.remote.n_bytes is not None and self.done > self.remote.n_bytes
        ):
            self.restart()
        if self.done and self.remote.sha256:
            with open(self.file.name, "rb") as earlier:
                while chunk := earlier.read(_CHUNK_BYTES):
                    self._digest.update(chunk)
        self.complete = self.done > 0 and self.done == self.remote.n_bytes
        self.progress(self.done)

    def restart(self) -> None:
        self.file.truncate(0)
        self.file.seek(0)
        self.done = 0
        self._digest = hashlib.sha256()

    def attempt(self) -> None:
        """One request for the rest. Returns when it brought something, raises _Transient when it did not."""
        before = self.done
        try:
            self._receive()
        except _Transient:
            if self.done <= before:
                raise

    def _receive(self) -> None:
        headers = {"Accept": "*/*"}
        if self.done:
            headers["Range"] = f"bytes={self.done}-"
            if self.remote.etag:
                headers["If-Range"] = self.remote.etag
        try:
            response = self.hub.open(self.remote.url, self.remote.label, "GET", headers)
        except HTTPError as error:
            error.close()
            self.restart()  # 416: what we hold is longer than the file
            raise _Transient(f"the server answered {error.code} {error.reason}") from error
        with response:
            etag = response.headers.get("ETag")
            if self.remote.etag and etag and etag != self.remote.etag:
                raise DownloadError(
                    f"{self.remote.label} changed on the server during the download; try again"
                )
            if self.done and not _continues(response, self.done, self.remote.n_bytes):
                self.restart()
                if response.status == 206:
                    raise _Transient("the server sent another part of the file than it was asked for")
            self._read(response)

    def _read(self, response: HTTPResponse) -> None:
        length = response.headers.get("Content-Length")
        end = self.done + int(length) if length and length.isdigit() else None
        limit = self.remote.n_bytes
        while True:
            try:
                chunk = response.read(_CHUNK_BYTES)
            except (HTTPException, OSError) as error:
                raise _Transient(f"the connection broke after {self.done} bytes") from error
            if not chunk:
                break
            self.file.write(chunk)
            self._digest.update(chunk)
            self.done += len(chunk)
            self.progress(self.done)
            if limit is not None and self.done > limit:
                break  # `fault` says so
        expected = limit if limit is not None else end
        if expected is not None and self.done < expected:
            raise _Transient(f"the connection broke after {self.done} of {expected} bytes")
        self.complete = True

    def fault(self) -> str | None:
        """What is wrong with the finished file; None if nothing is."""
        size, sha256 = self.remote.n_bytes, self.remote.sha256
        if size is not None and self.done != size:
            return f"expected {size} bytes, got {self.done}"
        if sha256 is not None and self._digest.hexdigest() != sha256:
            return f"expected SHA-256 {sha256}, got {self._digest.hexdigest()}"
        return None


def _continues(response: HTTPResponse, start: int, size: int | None) -> bool:
    """Whether an answer holds the file from ``start`` on, rather than all of it or something else."""
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    if response.status != 206 or match is None:
        return False
    return int(match[1]) == start and (size is None or match[2] in ("*", str(size)))


def _refusal(label: str, error: HTTPError, *, with_token: bool) -> str:
    said = error.headers.get("X-Error-Message") or error.reason
    advice = {
        401: "the repository does not exist, or needs a token: set HF_TOKEN",
        403: "HF_TOKEN gives no access; the licence may have to be accepted on the model's page"
        if with_token
        else "it needs a token: set HF_TOKEN",
        404: "there is no such repository, or no such file in it",
    }.get(error.code, "another attempt will not help")
    return f"cannot fetch {label}: the server answered {error.code} ({said}); {advice}"


@contextmanager
def _sole_writer(file: BinaryIO, label: str) -> Iterator[None]:
    """Two downloads into one file would mix; the lock ends with the process."""
    try:
        import fcntl
    except ImportError:  # Windows: the checksum finds a mixed file
        yield
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise DownloadError(f"{label} is being downloaded by another process already; wait for it") from error
    yield
