"""Multi30k comes whole, or with an error that says what to do. No test uses the internet.

The real files are not part of the project: tests of them look into `shared/data` beside the
repository. The others make do with nine short files, and with a server on this machine.
"""

import hashlib
import importlib
import re
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pooch
import pytest
import requests

from minitransformer import TextPair
from minitransformer.tasks.multi30k import multi30k

MODULE = importlib.import_module("minitransformer.tasks.multi30k")  # the function has the same name
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
SIZES = {"train": 29_000, "val": 1_014, "test_2016_flickr": 1_000}
LINES = {
    "de": "zwei hunde .\nein \u2028 hut\n",
    "en": "two dogs .\na hat\n",
    "fr": "l &apos;un\n \n",
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder with short files, laid out as the real ones, and their checksums."""
    folder = tmp_path / "data" / "multi30k" / "tok"
    folder.mkdir(parents=True)
    checksums = {}
    for name in MODULE.SHA256:
        content = LINES[name[-2:]].encode()
        (folder / name).write_bytes(content)
        checksums[name] = hashlib.sha256(content).hexdigest()
    monkeypatch.setattr(MODULE, "SHA256", checksums)
    monkeypatch.setenv("MINITRANSFORMER_DATA", str(tmp_path / "data"))
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty folder in place of the operating system's cache; no local folder is named."""
    monkeypatch.delenv("MINITRANSFORMER_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    return tmp_path / "cache" / "minitransformer" / "multi30k" / "tok"


@pytest.fixture
def requested(files, cache, monkeypatch):
    """Serve the short files from this machine; the paths asked for, in order."""
    paths = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            paths.append(self.path.removeprefix("/"))

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=files)) as server:
        monkeypatch.setattr(MODULE, "ADDRESS", f"http://127.0.0.1:{server.server_port}/")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield paths
        server.shutdown()
        thread.join()


# --- the real files


@pytest.fixture
def _real_files(monkeypatch):
    if not (SHARED / "multi30k" / "tok").is_dir():
        pytest.skip("the files of Multi30k are not in shared/data beside the repository")
    monkeypatch.setenv("MINITRANSFORMER_DATA", str(SHARED))


@pytest.mark.usefixtures("_real_files")
@pytest.mark.parametrize(("src", "tgt"), [("de", "en"), ("en", "fr")])
def test_splits_have_their_sizes_and_no_empty_text(src, tgt):
    splits = multi30k(src, tgt)
    assert {name: len(pairs) for name, pairs in splits.items()} == SIZES
    assert all(text.split() for pairs in splits.values() for pair in pairs for text in pair)


@pytest.mark.usefixtures("_real_files")
def test_first_and_last_pairs_are_the_published_ones():
    splits = multi30k()
    assert splits["train"][0] == TextPair(
        "zwei junge weiße männer sind im freien in der nähe vieler büsche .",
        "two young , white males are outside near many bushes .",
    )
    assert splits["val"][2] == TextPair(
        "ein junge mit kopfhörern sitzt auf den schultern einer frau .",
        "a boy wearing headphones sits on a woman 's shoulders .",
    )
    assert splits["test_2016_flickr"][0].tgt == "a man in an orange hat starring at something ."


@pytest.mark.usefixtures("_real_files")
def test_both_sides_describe_the_same_picture():
    pairs = multi30k()["train"]
    for german, english in (("hund", "dog"), ("roten", "red"), ("gitarre", "guitar")):
        both = sum(german in p.src.split() and english in p.tgt.split() for p in pairs)
        assert both > 0.7 * sum(german in p.src.split() for p in pairs)


@pytest.mark.usefixtures("_real_files")
def test_no_escape_of_the_tokeniser_is_left():
    texts = [text for pairs in multi30k().values() for pair in pairs for text in pair]
    assert not [text for text in texts if re.search("&[a-z#0-9]+;", text)]
    assert any(" 's " in text for text in texts)


# --- what a text is


def test_direction_is_chosen_by_language(files):
    one_way, back = multi30k("de", "en")["val"], multi30k("en", "de")["val"]
    assert one_way[0] == TextPair("zwei hunde .", "two dogs .")
    assert back == [TextPair(pair.tgt, pair.src) for pair in one_way]
    assert multi30k() == multi30k("de", "en")


def test_only_line_ends_cut_lines_and_escapes_are_undone(files):
    assert multi30k("de", "fr")["train"] == [
        TextPair("zwei hunde .", "l 'un"),
        TextPair("ein \u2028 hut", " "),
    ]


@pytest.mark.parametrize(
    ("src", "tgt", "message"),
    [
        ("nl", "en", "src must be 'de', 'en' or 'fr', got 'nl'"),
        ("de", "english", "tgt must be 'de', 'en' or 'fr', got 'english'"),
        ("fr", "fr", "src and tgt must be two languages, got 'fr' twice"),
    ],
)
def test_impossible_directions_are_refused(src, tgt, message):
    with pytest.raises(ValueError, match=message):
        multi30k(src, tgt)


# --- a local folder


def test_local_folder_lacking_a_file_is_named_with_the_address(files):
    (files / "val.lc.norm.tok.en").unlink()
    with pytest.raises(FileNotFoundError) as caught:
        multi30k()
    message = str(caught.value)
    assert str(files / "val.lc.norm.tok.en") in message
    assert f"{MODULE.ADDRESS}val.lc.norm.tok.en" in message
    assert f"MINITRANSFORMER_DATA={files.parents[1]}" in message


def test_damaged_local_file_is_refused_with_both_checksums(files):
    path = files / "train.lc.norm.tok.en"
    path.write_bytes(path.read_bytes().replace(b"two", b"few"))
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(ValueError, match="is damaged") as caught:
        multi30k()
    for part in (str(path), found, MODULE.SHA256[path.name]):
        assert part in str(caught.value)


def test_local_folder_needs_no_download(files, monkeypatch):
    monkeypatch.setattr(pooch, "retrieve", None)
    assert len(multi30k()["train"]) == 2


# --- download


def test_files_are_downloaded_once_and_only_those_needed(requested, cache):
    splits = multi30k("de", "en")
    assert splits["test_2016_flickr"][1] == TextPair("ein \u2028 hut", "a hat")
    names = sorted(name for name in MODULE.SHA256 if not name.endswith("fr"))
    assert sorted(requested) == names
    assert sorted(path.name for path in cache.iterdir()) == names
    assert multi30k("en", "de").keys() == splits.keys()
    assert len(requested) == 6


def test_damaged_file_in_the_cache_is_downloaded_again(requested, cache):
    first = multi30k()
    (cache / "val.lc.norm.tok.de").write_text("cut off")
    assert multi30k() == first
    assert requested[6:] == ["val.lc.norm.tok.de"]


def test_download_with_another_checksum_is_refused(requested, cache, monkeypatch):
    monkeypatch.setitem(MODULE.SHA256, "train.lc.norm.tok.en", 64 * "0")
    with pytest.raises(ValueError, match=r"train\.lc\.norm\.tok\.en.* does not match"):
        multi30k()
    assert not (cache / "train.lc.norm.tok.en").exists()


def test_file_missing_on_the_server_is_a_connection_error(requested, files):
    (files / "train.lc.norm.tok.de").unlink()
    with pytest.raises(ConnectionError, match="404"):
        multi30k()


def test_offline_error_says_what_to_do(cache, monkeypatch):
    def refuse(*args, **kwargs):
        raise requests.ConnectionError("no route to host")

    monkeypatch.setattr(requests.Session, "request", refuse)
    with pytest.raises(ConnectionError) as caught:
        multi30k()
    message = str(caught.value)
    assert f"{MODULE.ADDRESS}train.lc.norm.tok.de" in message
    for part in ("no route to host", "MINITRANSFORMER_DATA", "multi30k/tok"):
        assert part in message
    assert isinstance(caught.value.__cause__, requests.ConnectionError)


def test_addresses_are_pinned():
    assert re.search("/multi30k/dataset/[0-9a-f]{40}/data/task1/tok/$", MODULE.ADDRESS)
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in MODULE.SHA256.values())
    assert len(set(MODULE.SHA256.values())) == 9
