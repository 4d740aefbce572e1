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
from helpers import refuses

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


def test_the_real_files_hold_translations(monkeypatch):
    if not (SHARED / "multi30k" / "tok").is_dir():
        pytest.skip("the files of Multi30k are not in shared/data beside the repository")
    monkeypatch.setenv("MINITRANSFORMER_DATA", str(SHARED))
    splits = multi30k()
    assert {name: len(pairs) for name, pairs in splits.items()} == SIZES
    assert splits["train"][0] == TextPair(
        "zwei junge weiße männer sind im freien in der nähe vieler büsche .",
        "two young , white males are outside near many bushes .",
    )
    assert splits["val"][2].tgt == "a boy wearing headphones sits on a woman 's shoulders ."
    texts = [text for pairs in (*splits.values(), *multi30k("en", "fr").values()) for text in pairs]
    assert all(text.split() and not re.search("&[a-z#0-9]+;", text) for p in texts for text in p)
    for german, english in (("hund", "dog"), ("roten", "red"), ("gitarre", "guitar")):
        said = [p.tgt.split() for p in splits["train"] if german in p.src.split()]
        assert sum(english in words for words in said) > 0.7 * len(said)


def test_direction_is_chosen_and_only_line_ends_cut_lines(files):
    one_way, back = multi30k("de", "en")["val"], multi30k("en", "de")["val"]
    assert one_way[0] == TextPair("zwei hunde .", "two dogs .")
    assert back == [TextPair(pair.tgt, pair.src) for pair in one_way]
    assert multi30k() == multi30k("de", "en")
    lines = [TextPair("zwei hunde .", "l 'un"), TextPair("ein \u2028 hut", " ")]
    assert multi30k("de", "fr")["train"] == lines


test_impossible_directions_are_refused = refuses(
    ("src must be 'de', 'en' or 'fr', got 'nl'", lambda: multi30k("nl", "en")),
    ("tgt must be 'de', 'en' or 'fr', got 'english'", lambda: multi30k("de", "english")),
    ("must be two languages, got 'fr' twice", lambda: multi30k("fr", "fr")),
)


# --- download


def test_files_are_downloaded_once_and_only_those_needed(requested, cache):
    splits = multi30k("de", "en")
    assert splits["test_2016_flickr"][1] == TextPair("ein \u2028 hut", "a hat")
    names = sorted(name for name in MODULE.SHA256 if not name.endswith("fr"))
    assert sorted(requested) == sorted(path.name for path in cache.iterdir()) == names
    assert multi30k("en", "de").keys() == splits.keys()
    assert len(requested) == 6
    (cache / "val.lc.norm.tok.de").write_text("cut off")
    assert multi30k() == splits
    assert requested[6:] == ["val.lc.norm.tok.de"]


def test_the_folder_that_is_named_takes_the_place_of_the_cache(requested, cache, monkeypatch):
    monkeypatch.setenv("MINITRANSFORMER_DATA", str(cache.parent / "mine"))
    splits = multi30k("de", "en")
    assert len(requested) == len(list((cache.parent / "mine" / "multi30k" / "tok").iterdir())) == 6
    assert not cache.exists()
    monkeypatch.setattr(MODULE, "ADDRESS", "http://127.0.0.1:1/")  # what is there is not asked for
    assert multi30k("de", "en") == splits


def test_download_with_another_checksum_is_refused(requested, cache, monkeypatch):
    monkeypatch.setitem(MODULE.SHA256, "train.lc.norm.tok.en", 64 * "0")
    with pytest.raises(ValueError, match=r"train\.lc\.norm\.tok\.en.* does not match"):
        multi30k()
    assert not (cache / "train.lc.norm.tok.en").exists()


def test_file_missing_on_the_server_is_a_connection_error(requested, cache, files):
    (files / "train.lc.norm.tok.de").unlink()
    with pytest.raises(ConnectionError, match="404"):
        multi30k()


def test_offline_error_says_what_to_do(cache, monkeypatch):
    def refuse(*args, **kwargs):
        raise requests.ConnectionError("no route to host")

    monkeypatch.setattr(requests.Session, "request", refuse)
    with pytest.raises(ConnectionError) as caught:
        multi30k()
    said = ("train.lc.norm.tok.de", "no route to host", "MINITRANSFORMER_DATA", MODULE.ADDRESS)
    assert all(part in str(caught.value) for part in (*said, str(cache)))
    assert isinstance(caught.value.__cause__, requests.ConnectionError)
