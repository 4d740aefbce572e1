"""Multi30k: 31,014 descriptions of pictures in English, German and French.

Built in chapter 8. Papers: "Multi30K: Multilingual English-German Image Descriptions" (Elliott et
al., 2016); for French, "Findings of the Second Shared Task on Multimodal Machine Translation"
(Elliott et al., 2017).
"""

import html
import os
from pathlib import Path

from minitransformer.checks import library
from minitransformer.training.data import TextPair

__all__ = ["multi30k"]

# Pinned to a commit: the files there are those of the checksums, whatever comes after it.
ADDRESS = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/tok/"
)
FOLDER = "MINITRANSFORMER_DATA"
LANGUAGES = ("de", "en", "fr")
SPLITS = ("train", "val", "test_2016_flickr")
SHA256 = dict(
    line.split()
    for line in """
    train.lc.norm.tok.de            cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505
    train.lc.norm.tok.en            08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119
    train.lc.norm.tok.fr            8fa41bb718412bcb7c5dfa58603842810a01543eae86a51279f9886b901266e1
    val.lc.norm.tok.de              97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00
    val.lc.norm.tok.en              46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec
    val.lc.norm.tok.fr              b303e301aa21fe7822a846b2b3fb2d5a1121ec807cd5b1d006fb7b2b5507168a
    test_2016_flickr.lc.norm.tok.de c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4
    test_2016_flickr.lc.norm.tok.en 5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2
    test_2016_flickr.lc.norm.tok.fr 1463bd5960f9bfe098ec3cd752d3df0c49c84dc646fb518964a29232658cd836
    """.strip().splitlines()
)


def multi30k(src: str = "de", tgt: str = "en") -> dict[str, list[TextPair]]:
    """Sentences that describe pictures, with their translations: a real task.

    The texts are the data set's own lower-cased and tokenised ones: words and marks with spaces
    between them. Only the escapes of the tokeniser are undone (`man &apos;s` is `man 's`).

    The splits, in the order of the files: `train` with 29,000 pairs, `val` with 1,014 and
    `test_2016_flickr` with 1,000.

    The files, 2 MB a language, are downloaded at the first use and then kept in `multi30k/tok`
    of the folder that the environment variable `MINITRANSFORMER_DATA` names, or else of the
    operating system's cache folder. Their SHA-256 is checked whenever they are read: a damaged
    file is downloaded again.

    The data are not part of this package. Their authors provide them for non-commercial research
    and education; see https://github.com/multi30k/dataset.

    Args:
        src: source language, "de", "en" or "fr".
        tgt: target language, another of these.

    Raises:
        ValueError: if a language is unknown, both are the same, or a download is not the file.
        ConnectionError: if a download fails.

    Example:
        >>> multi30k("de", "nl")
        Traceback (most recent call last):
        ValueError: tgt must be 'de', 'en' or 'fr', got 'nl'
    """
    for name, language in (("src", src), ("tgt", tgt)):
        if language not in LANGUAGES:
            raise ValueError(f"{name} must be 'de', 'en' or 'fr', got {language!r}")
    if src == tgt:
        raise ValueError(f"src and tgt must be two languages, got {src!r} twice")
    return {
        split: list(map(TextPair, read_lines(split, src), read_lines(split, tgt)))
        for split in SPLITS
    }


def read_lines(split: str, language: str) -> list[str]:
    """The sentences of a split in one language."""
    text = file_of(f"{split}.lc.norm.tok.{language}").read_bytes().decode()
    # Not splitlines(), which would also cut at separators that Unicode has inside a line.
    return [html.unescape(line) for line in text.removesuffix("\n").split("\n")]


def file_of(name: str) -> Path:
    """The path of a file, which is downloaded if it is missing or damaged."""
    pooch = library("pooch", "book")
    from requests.exceptions import RequestException  # comes with it

    root = os.environ.get(FOLDER) or pooch.os_cache("minitransformer")
    folder = Path(root) / "multi30k" / "tok"
    try:
        return Path(pooch.retrieve(ADDRESS + name, SHA256[name], fname=name, path=folder))
    except RequestException as error:
        raise ConnectionError(
            f"{ADDRESS}{name} cannot be downloaded to {folder} ({error}); try again with an "
            f"internet connection, or put the file there; {FOLDER} may name another folder"
        ) from error
