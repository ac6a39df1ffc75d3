"""The Hugging Face source against a local server that speaks the hub's protocol, and misbehaves when told to."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from ramforge_core import files
from ramforge_core.errors import DownloadError, ParameterError
from ramforge_sources import HuggingFaceSource
from ramforge_sources import http as sources_http

BODY = bytes(range(256)) * 2048  # 512 KiB
NAME = "hf://owner/repo/quants/model.Q4_K.gguf"
PATH = "/owner/repo/resolve/main/quants/model.Q4_K.gguf"


class _Handler(BaseHTTPRequestHandler):
    """The hub's answers: HEAD and GET of the address redirect to /store, as for large files."""

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self._answer()

    def do_GET(self):
        self._answer()

    def _answer(self):
        hub = self.server.hub
        hub.requests.append((self.command, self.path, dict(self.headers)))
        if hub.failures:
            self._plain(*hub.failures.pop(0))
        elif self.path.startswith("/store"):
            self._send(hub.files[self.path.removeprefix("/store")])
        elif self.path not in hub.files:
            self._plain(404, {"X-Error-Message": "Entry not found"})
        elif hub.direct:
            self._send(hub.files[self.path])
        else:
            body = hub.files[self.path]
            etag = hub.linked_etag or hashlib.sha256(body).hexdigest()
            headers = {"X-Linked-Size": len(body), "X-Linked-Etag": f'"{etag}"'}
            self._plain(302, {"Location": f"{hub.store}/store{self.path}", **headers})

    def _plain(self, status, headers):
        self.send_response(status)
        for key, value in {"Content-Length": 0, **headers}.items():
            self.send_header(key, str(value))
        self.end_headers()

    def _send(self, body):
        hub, start, end = self.server.hub, 0, len(body)
        wanted = self.headers.get("Range")
        matches = self.headers.get("If-Range") in (None, hub.etag)
        if wanted and hub.ranges and matches:
            start = int(wanted.removeprefix("bytes=").rstrip("-")) + hub.range_shift
            if start >= end:
                return self._plain(416, {})
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{end}")
        else:
            self.send_response(200)
        if hub.etag:
            self.send_header("ETag", hub.etag)
        if hub.length:
            self.send_header("Content-Length", str(end - start))
        self.end_headers()
        if self.command == "GET":
            cut = hub.cuts.pop(0) if hub.cuts else end - start
            self.wfile.write(body[start : start + cut])
        return None


@pytest.fixture
def hub(monkeypatch):
    """A running hub; its attributes choose the behaviour, ``requests`` holds what it was asked."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    address = f"http://127.0.0.1:{server.server_address[1]}"
    server.hub = SimpleNamespace(
        files={PATH: BODY}, requests=[], failures=[], cuts=[], direct=False, ranges=True, range_shift=0,
        etag=None, length=True, linked_etag=None, store=address.replace("127.0.0.1", "localhost"), url=address,
    )  # fmt: skip
    monkeypatch.setenv("HF_ENDPOINT", address)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    waits = []
    monkeypatch.setattr(sources_http.time, "sleep", waits.append)
    monkeypatch.setattr(sources_http.Hub.__init__, "__defaults__", (None, waits.append))
    server.hub.waits = waits
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server.hub
    server.shutdown()
    thread.join()
    server.server_close()


def fetch(folder: Path, name: str = NAME) -> tuple[Path, list[tuple[int, int | None]]]:
    source, seen = HuggingFaceSource(), []
    target = folder / Path(source.filename(name)).name
    source.fetch(name, target, lambda done, total: seen.append((done, total)))
    return target, seen


def gets(hub) -> list[dict[str, str]]:
    return [
        headers for command, path, headers in hub.requests if command == "GET" and path.startswith("/store")
    ]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ------------------------------------------------------------------ names


@pytest.mark.parametrize(
    "name",
    [
        "hf://",
        "hf://owner/file.gguf",
        "hf://owner/repo/",
        "hf://owner/repo/README.md",
        "hf://owner/repo/../other/file.gguf",
        "hf://../repo/file.gguf",
        "hf://owner/repo//file.gguf",
        "hf://ow ner/repo/file.gguf",
        "hf://owner/repo/a\\b.gguf",
        "hf://owner/repo/a\nb.gguf",
        "hf://owner/repo/C:file.gguf",
    ],
)
def test_a_name_that_says_no_file_is_refused(name):
    with pytest.raises(ParameterError, match=r"hf://owner/repo/path/file\.gguf"):
        HuggingFaceSource().filename(name)


def test_any_shard_stands_for_the_whole_model_under_the_first_ones_name():
    source = HuggingFaceSource()
    second = source.filename("hf://o/r/q/big-00002-of-00003.gguf")
    assert (
        second == source.filename("hf://o/r/q/big-00001-of-00003.gguf") == "hf/o/r/q/big-00001-of-00003.gguf"
    )
    assert source.claims("hf://o/r/f.gguf")
    assert not source.claims("smollm2")


# ------------------------------------------------------------------ the good road


def test_a_file_is_fetched_checked_and_nothing_else_is_left(hub, tmp_path):
    target, seen = fetch(tmp_path)
    assert target.read_bytes() == BODY
    assert names(tmp_path) == [target.name]
    assert seen[-1] == (len(BODY), len(BODY))
    assert [n for n, _ in seen] == sorted(n for n, _ in seen)
    assert {total for _, total in seen} == {len(BODY)}


def test_the_token_goes_to_the_hub_and_to_nobody_else(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    fetch(tmp_path)
    by_place = {
        place: {
            headers.get("Authorization")
            for _, path, headers in hub.requests
            if path.startswith("/store") is place
        }
        for place in (True, False)
    }
    assert by_place == {False: {"Bearer secret"}, True: {None}}


def test_a_redirect_within_the_hub_is_followed_with_the_method_and_the_token(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    hub.files["/new/name"] = BODY
    moved = (307, {"Location": "/new/name"})
    hub.failures = [moved]
    assert fetch(tmp_path)[0].read_bytes() == BODY
    command, path, headers = hub.requests[1]
    assert (command, path, headers["Authorization"]) == ("HEAD", "/new/name", "Bearer secret")


def test_a_hub_without_redirects_serves_too(hub, tmp_path):
    hub.direct, hub.etag = True, '"v1"'
    assert fetch(tmp_path)[0].read_bytes() == BODY


def test_a_server_that_does_not_say_the_size_serves_too(hub, tmp_path):
    hub.direct, hub.length = True, False
    target, seen = fetch(tmp_path)
    assert target.read_bytes() == BODY
    assert seen[-1] == (len(BODY), None)


def test_all_shards_are_fetched_and_the_first_comes_last(hub, tmp_path):
    paths = [f"/o/r/resolve/main/m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    hub.files = {path: BODY[: 1000 * i] for i, path in enumerate(paths, 1)}
    target, seen = fetch(tmp_path, "hf://o/r/m-00002-of-00003.gguf")
    assert target.name == "m-00001-of-00003.gguf"
    assert names(tmp_path) == [path.rpartition("/")[2] for path in paths]
    assert [len(path.read_bytes()) for path in sorted(tmp_path.iterdir())] == [1000, 2000, 3000]
    assert seen[-1] == (6000, 6000)
    stored = [path for command, path, _ in hub.requests if command == "GET" and path.startswith("/store")]
    assert stored[-1].endswith("m-00001-of-00003.gguf")


def test_a_missing_shard_is_told_before_anything_is_fetched(hub, tmp_path):
    hub.files = {"/o/r/resolve/main/m-00001-of-00002.gguf": BODY}
    with pytest.raises(DownloadError, match=r"m-00002-of-00002\.gguf.*404"):
        fetch(tmp_path, "hf://o/r/m-00001-of-00002.gguf")
    assert not gets(hub)
    assert names(tmp_path) == []


def test_shards_that_are_there_already_are_not_fetched_again(hub, tmp_path):
    paths = [f"/o/r/resolve/main/m-0000{i}-of-00002.gguf" for i in (1, 2)]
    hub.files = dict.fromkeys(paths, BODY)
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(BODY)
    fetch(tmp_path, "hf://o/r/m-00001-of-00002.gguf")
    assert len(gets(hub)) == 1


# ------------------------------------------------------------------ breaks


def test_a_broken_connection_is_continued_where_it_broke(hub, tmp_path):
    hub.cuts = [100_000, 50_000]
    target, _ = fetch(tmp_path)
    assert target.read_bytes() == BODY
    assert [h.get("Range") for h in gets(hub)] == [None, "bytes=100000-", "bytes=150000-"]


def test_a_later_call_continues_what_an_earlier_one_left(hub, tmp_path):
    hub.cuts = [100_000, 0, 0, 0, 0]
    with pytest.raises(DownloadError, match="100000 of 524288 bytes"):
        fetch(tmp_path)
    (part,) = names(tmp_path)
    assert part.endswith(".part")
    hub.requests.clear()
    assert fetch(tmp_path)[0].read_bytes() == BODY
    assert [h.get("Range") for h in gets(hub)] == ["bytes=100000-"]
    assert not [n for n in names(tmp_path) if n.endswith(".part")]


def test_a_server_that_ignores_ranges_sends_it_all_again(hub, tmp_path):
    hub.ranges, hub.cuts = False, [100_000]
    assert fetch(tmp_path)[0].read_bytes() == BODY
    assert len(gets(hub)) == 2


def test_a_server_that_ignores_ranges_and_breaks_every_time_is_given_up(hub, tmp_path):
    hub.ranges, hub.cuts = False, [100_000] * 50
    with pytest.raises(DownloadError, match="the connection broke"):
        fetch(tmp_path)
    assert len(gets(hub)) <= 6


def test_a_server_that_sends_another_part_than_asked_for_is_not_believed(hub, tmp_path):
    hub.range_shift, hub.cuts = 7, [100_000]
    assert fetch(tmp_path)[0].read_bytes() == BODY
    assert [h.get("Range") for h in gets(hub)] == [None, "bytes=100000-", None]


def test_a_new_version_on_the_server_is_not_mixed_with_the_old_part(hub, tmp_path):
    hub.cuts = [100_000, 0, 0, 0, 0]
    with pytest.raises(DownloadError):
        fetch(tmp_path)
    hub.files[PATH] = BODY[::-1]
    hub.requests.clear()
    assert fetch(tmp_path)[0].read_bytes() == BODY[::-1]
    assert [h.get("Range") for h in gets(hub)] == [None]
    assert len(names(tmp_path)) == 1


def test_without_a_checksum_the_servers_mark_guards_the_continuation(hub, tmp_path):
    hub.direct, hub.etag, hub.cuts = True, '"v1"', [100_000]
    assert fetch(tmp_path)[0].read_bytes() == BODY
    again = [h for c, _, h in hub.requests if c == "GET"][1]
    assert (again["Range"], again["If-Range"]) == ("bytes=100000-", '"v1"')


def test_without_any_mark_nothing_is_continued_by_a_later_call(hub, tmp_path):
    hub.direct, hub.cuts = True, [100_000, 0, 0, 0, 0]
    with pytest.raises(DownloadError):
        fetch(tmp_path)
    hub.requests.clear()
    assert fetch(tmp_path)[0].read_bytes() == BODY
    assert [h.get("Range") for c, _, h in hub.requests if c == "GET"] == [None]


def test_an_overlong_part_is_begun_anew(hub, tmp_path):
    hub.cuts = [100_000, 0, 0, 0, 0]
    with pytest.raises(DownloadError):
        fetch(tmp_path)
    (part,) = tmp_path.iterdir()
    part.write_bytes(BODY + b"more")
    assert fetch(tmp_path)[0].read_bytes() == BODY


def test_a_busy_server_is_asked_again_when_it_says(hub, tmp_path):
    hub.failures = [(503, {"Retry-After": "7"}), (429, {})]
    assert fetch(tmp_path)[0].read_bytes() == BODY
    assert hub.waits == [7.0, 2.0]


def test_a_server_that_stays_busy_is_given_up(hub, tmp_path):
    hub.failures = [(503, {})] * 50
    with pytest.raises(DownloadError, match="503"):
        fetch(tmp_path)
    assert hub.waits == [1.0, 2.0, 4.0]
    assert names(tmp_path) == []


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("status", "token", "advice"),
    [
        (401, "", "set HF_TOKEN"),
        (403, "", "set HF_TOKEN"),
        (403, "t", "licence"),
        (404, "", "no such repository"),
    ],
)
def test_a_refusal_says_what_to_do(hub, tmp_path, monkeypatch, status, token, advice):
    monkeypatch.setenv("HF_TOKEN", token)
    hub.failures = [(status, {"X-Error-Message": "so says the hub"})]
    with pytest.raises(DownloadError, match=rf"{NAME}.*{status} \(so says the hub\).*{advice}"):
        fetch(tmp_path)
    assert len(hub.requests) == 1
    assert hub.waits == []


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(hub, tmp_path):
    hub.linked_etag = "0" * 64
    with pytest.raises(DownloadError, match="SHA-256 0000"):
        fetch(tmp_path)
    assert names(tmp_path) == []


def test_a_short_body_is_no_model(hub, tmp_path):
    hub.direct, hub.length, hub.cuts = (
        True,
        False,
        [1000] * 20,
    )  # nothing but the closed connection tells the end
    hub.failures = [(200, {"Content-Length": len(BODY), "ETag": '"v1"'})]
    hub.etag, hub.ranges = '"v1"', False
    with pytest.raises(DownloadError, match="1000 of 524288 bytes"):
        fetch(tmp_path)
    assert all(name.endswith(".part") for name in names(tmp_path))


def test_nobody_is_there(tmp_path, hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match=r"no connection to 127\.0\.0\.1:9"):
        fetch(tmp_path)
    assert names(tmp_path) == []


def test_a_redirect_to_another_protocol_is_refused(hub, tmp_path):
    hub.failures = [(302, {"Location": "ftp://example.org/x"})]
    with pytest.raises(DownloadError):
        fetch(tmp_path)


@pytest.mark.parametrize("endpoint", ["file:///etc", "ftp://example.org", "example.org"])
def test_an_endpoint_is_a_web_address(endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(DownloadError, match="HF_ENDPOINT"):
        fetch(tmp_path)


def test_a_full_disk_is_told_before_the_download(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(files.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(DownloadError, match="too full"):
        fetch(tmp_path)
    assert not gets(hub)


def test_two_downloads_of_one_file_do_not_mix(hub, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    mark = hashlib.sha256(hashlib.sha256(BODY).hexdigest().encode()).hexdigest()[:16]
    with (tmp_path / f"model.Q4_K.gguf.{mark}.part").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DownloadError, match="another process"):
            fetch(tmp_path)


# ------------------------------------------------------------------ the hub's own cache


def test_what_the_hubs_own_tools_fetched_is_used_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    source = HuggingFaceSource()
    assert source.find(NAME) is None
    commit = "0123456789abcdef0123456789abcdef01234567"
    repo = tmp_path / "models--owner--repo"
    file = repo / "snapshots" / commit / "quants" / "model.Q4_K.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"GGUF")
    assert source.find(NAME) is None
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    assert source.find(NAME) == file


def test_a_split_model_counts_as_found_only_with_all_its_shards(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    commit = "f" * 40
    repo = tmp_path / "hub" / "models--o--r"
    snapshot = repo / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    (snapshot / "m-00001-of-00002.gguf").touch()
    assert HuggingFaceSource().find("hf://o/r/m-00001-of-00002.gguf") is None
    (snapshot / "m-00002-of-00002.gguf").touch()
    assert HuggingFaceSource().find("hf://o/r/m-00002-of-00002.gguf") == snapshot / "m-00001-of-00002.gguf"
