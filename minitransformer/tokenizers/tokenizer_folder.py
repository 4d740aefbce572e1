"""The files of a published tokenizer, as the content of one `tokenizer.json`.

Older files hold only a vocabulary; what is to be done with it is in the class that reads them. For
the classes in `READ_BY` it is written down here, in the words of a `tokenizer.json`.

Source: the classes `GPT2Tokenizer`, `RobertaTokenizer`, `BartTokenizer`, `BertTokenizer`,
`T5Tokenizer` and `MarianTokenizer` of the library `transformers`.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minitransformer.pretrained import local_folder
from minitransformer.tokenizer_file import abbreviated, read_json
from minitransformer.tokenizers.unigram import processor

SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
KEPT = ("chat_template.jinja",)  # not read, only written again
KINDS = (
    ("tokenizer.json",),
    ("source.spm", "target.spm", "vocab.json"),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
    ("spiece.model",),
)
"""The files that make a tokenizer; the first kind of which all are there is read."""
FILES = tuple(dict.fromkeys([name for kind in KINDS for name in kind] + [*SETTINGS, *KEPT]))

READ_BY = {
    "source.spm": ("Marian",),
    "vocab.json": ("GPT2", "Roberta", "Bart"),
    "vocab.txt": ("Bert", "DistilBert"),
    "spiece.model": ("T5", "MT5"),
}
"""Which classes, and families of models, files without a `tokenizer.json` are read for."""

COMMON_NAMES = {
    "pad": ("<pad>", "[PAD]"),
    "bos": ("<bos>", "<s>"),
    "eos": ("<eos>", "</s>"),
    "unk": ("<unk>", "[UNK]"),
    "mask": ("<mask>", "[MASK]"),
    "cls": ("[CLS]",),
    "sep": ("[SEP]",),
}
"""What special tokens are called where no file says which one has this role."""

BYTE_LEVEL = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
WORD_PIECE = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
TEXTS = ("A", "B")
State = dict[str, Any]
Names = dict[str, str | int | None]


def read_folder(
    name_or_folder: str | os.PathLike[str], side: str
) -> tuple[State, Names, dict[str, bytes]]:
    """The content of a `tokenizer.json`, special tokens by role, and the files as they are."""
    folder = local_folder(name_or_folder, [*FILES, "config.json"])
    kind = next((k for k in KINDS if all((folder / name).is_file() for name in k)), None)
    if kind is None:
        wanted = ", or ".join(" + ".join(names) for names in KINDS)
        raise FileNotFoundError(f"the folder {folder} has no tokenizer: no {wanted}")
    if side not in (("source", "target") if kind[0] == "source.spm" else ("source",)):
        raise ValueError(f"side is {side!r}, but {folder} has one tokenizer for both sides")
    files = {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}
    settings = {name: settings_of(folder / name) for name in (*SETTINGS, "config.json")}
    if kind[0] == "tokenizer.json":
        state = read_json(folder / kind[0])
    else:
        tokenizer_config, config = settings["tokenizer_config.json"], settings["config.json"]
        check_class(folder, kind[0], tokenizer_config, config)
        state = MAKERS[kind[0]](folder, tokenizer_config, side)
        state["added_tokens"] += more_added(state, settings)
        if kind[0].startswith("vocab"):
            files["tokenizer.json"] = as_json(state)
    return state, special_names(settings), files


def settings_of(path: Path) -> dict[str, Any]:
    """A JSON file, or nothing where there is none."""
    return read_json(path) if path.is_file() else {}


def as_json(content: Mapping[str, Any]) -> bytes:
    """The bytes of a JSON file."""
    return json.dumps(content, ensure_ascii=False, indent=2).encode("utf-8", "surrogatepass")


def check_class(
    folder: Path, file: str, tokenizer_config: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    """Raise an error if the files are for a class, or a model, that does something else."""
    known = READ_BY[file]
    named = tokenizer_config.get("tokenizer_class")
    if named is not None:
        if str(named).removesuffix("Fast").removesuffix("Tokenizer") not in known:
            classes = " or ".join(f"{name}Tokenizer" for name in known)
            raise ValueError(
                f"{folder}: tokenizer_class is {abbreviated(named)}; without a tokenizer.json, "
                f"{file} is read for {classes}"
            )
    elif config.get("model_type") not in (None, *map(str.lower, known)):
        raise ValueError(
            f"{folder}: model_type is {abbreviated(config['model_type'])}; without a "
            f"tokenizer.json, {file} is read for {' or '.join(map(str.lower, known))}"
        )


def special_names(settings: Mapping[str, Mapping[str, Any]]) -> Names:
    """Which token has which role.

    What `tokenizer_config.json` says counts before `special_tokens_map.json`. The ids of
    `config.json` count only where neither names a token: a model without padding has the id of
    some other token there, now and then.
    """
    named: Names = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        for role in COMMON_NAMES:
            if f"{role}_token" in settings[file]:
                named[role] = content_of(settings[file][f"{role}_token"])
    if named:  # what is unknown is the model's to say
        return dict.fromkeys(COMMON_NAMES.keys() - {"unk"}) | named
    ids = {role: settings["config.json"].get(f"{role}_token_id") for role in COMMON_NAMES}
    return {role: index for role, index in ids.items() if isinstance(index, int)}


def content_of(token: Any) -> str | None:
    """The text of a token, which may be given with all its flags."""
    return token["content"] if isinstance(token, dict) else token


def more_added(state: State, settings: Mapping[str, Mapping[str, Any]]) -> list[State]:
    """Tokens that were added to the vocabulary of an older file later on."""
    known = {token["content"] for token in state["added_tokens"]}
    special: set[str | None] = set()
    for value in settings["special_tokens_map.json"].values():
        special |= {content_of(token) for token in (value if isinstance(value, list) else [value])}
    described = settings["tokenizer_config.json"].get("added_tokens_decoder", {})
    found = {
        int(index): {key: value for key, value in token.items() if key != "__type"}
        for index, token in described.items()
    }
    for content, index in settings["added_tokens.json"].items():
        flags = {"special": content in special, "normalized": content not in special}
        found.setdefault(index, {"content": content, **flags})
    return [
        {"id": index, **token}
        for index, token in sorted(found.items())
        if token["content"] not in known
    ]


def added(vocab: Mapping[str, int], *contents: str) -> list[State]:
    """Entries of `added_tokens` for special tokens of the vocabulary, in order of id."""
    flags = {"single_word": False, "rstrip": False, "normalized": False, "special": True}
    return [
        {"id": vocab[content], "content": content, "lstrip": content == "<mask>"} | flags
        for content in sorted({*contents} & vocab.keys(), key=vocab.__getitem__)
    ]


def byte_level_state(folder: Path, settings: Mapping[str, Any], side: str) -> State:
    """`vocab.json` and `merges.txt`: GPT-2; with a <mask>, RoBERTa and BART."""
    vocab = read_json(folder / "vocab.json")
    lines = lines_of(folder / "merges.txt")
    merges = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    pieces = BYTE_LEVEL | {"add_prefix_space": bool(settings.get("add_prefix_space"))}
    around = None
    if {"<s>", "</s>", "<mask>"} <= vocab.keys():
        around = {
            "type": "RobertaProcessing",
            "sep": ["</s>", vocab["</s>"]],
            "cls": ["<s>", vocab["<s>"]],
            "trim_offsets": True,
            "add_prefix_space": pieces["add_prefix_space"],
        }
    special = ["<|endoftext|>"] if around is None else ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    return state_of(
        added(vocab, *special),
        model={"type": "BPE", "vocab": vocab, "merges": merges},
        pre_tokenizer={"type": "ByteLevel", **pieces},
        post_processor=around,
        decoder={"type": "ByteLevel", **BYTE_LEVEL},
    )


def word_piece_state(folder: Path, settings: Mapping[str, Any], side: str) -> State:
    """`vocab.txt`: BERT and DistilBERT."""
    vocab = {token: index for index, token in enumerate(lines_of(folder / "vocab.txt"))}
    named = {
        role: content_of(settings.get(f"{role}_token")) or f"[{role.upper()}]"
        for role in ("pad", "unk", "cls", "sep", "mask")
    }
    if missing := [
        token for token in (named["unk"], named["cls"], named["sep"]) if token not in vocab
    ]:
        raise ValueError(f"{folder}: vocab.txt lacks {', '.join(missing)}")
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
        "strip_accents": settings.get("strip_accents"),
        "lowercase": settings.get("do_lower_case", True),
    }
    around = template([named["cls"], "A", named["sep"]], ["B", named["sep"]], 1, vocab)
    return state_of(
        added(vocab, *named.values()),
        model={"type": "WordPiece", "unk_token": named["unk"], **WORD_PIECE, "vocab": vocab},
        normalizer=normalizer,
        pre_tokenizer={"type": "BertPreTokenizer"},
        post_processor=around,
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
    )


def t5_state(folder: Path, settings: Mapping[str, Any], side: str) -> State:
    """`spiece.model`: T5, whose sentinels <extra_id_0>, <extra_id_1>, ... come last, backwards."""
    file = (folder / "spiece.model").read_bytes()
    pieces = processor(file)
    vocab = {pieces.id_to_piece(index): index for index in range(pieces.get_piece_size())}
    vocab |= {
        f"<extra_id_{number}>": pieces.get_piece_size() + place
        for place, number in enumerate(reversed(range(settings.get("extra_ids", 100))))
    }
    sentinels = [token for token in vocab if token.startswith("<extra_id_")]
    special = added(vocab, "<pad>", "</s>", "<unk>", *sentinels)
    return sentence_piece_state(vocab, special, file, file)


def marian_state(folder: Path, settings: Mapping[str, Any], side: str) -> State:
    """`source.spm` and `target.spm`, whose pieces have their ids in `vocab.json`."""
    if (folder / "target_vocab.json").exists() or settings.get("separate_vocabs"):
        raise ValueError(f"{folder} has a vocabulary for each side, expected one for both")
    vocab = read_json(folder / "vocab.json")
    special = added(vocab, "</s>", "<unk>", "<pad>")
    files = ((folder / f"{side}.spm").read_bytes(), (folder / "target.spm").read_bytes())
    return sentence_piece_state(vocab, special, *files, has_codes=True)


def sentence_piece_state(
    vocab: Mapping[str, int], special: list[State], cuts: bytes, joins: bytes, **options: bool
) -> State:
    """What the library `sentencepiece` does, as steps."""
    model = {"type": "SentencePiece", "vocab": vocab, "file": cuts, "unk_token": "<unk>", **options}
    decoder = {"type": "SentencePiece", "file": joins, "special": [t["content"] for t in special]}
    around = template(["A", "</s>"], ["B", "</s>"], 0, vocab)
    return state_of(special, model, post_processor=around, decoder=decoder)


def state_of(added_tokens: list[State], model: State, **steps: State | None) -> State:
    """The content of a `tokenizer.json`; a step left out is null."""
    common = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added_tokens}
    others = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return {**common, **others, **steps, "model": model}


def template(single: list[str], second: list[str], kind: int, vocab: Mapping[str, int]) -> State:
    """A post_processor: what stands around a text, and what follows, of that type, for two."""

    def part(name: str, kind: int) -> State:
        return {"Sequence" if name in TEXTS else "SpecialToken": {"id": name, "type_id": kind}}

    tokens = [name for name in (*single, *second) if name not in TEXTS]
    first = [part(name, 0) for name in single]
    return {
        "type": "TemplateProcessing",
        "single": first,
        "pair": [*first, *(part(name, kind) for name in second)],
        "special_tokens": {t: {"id": t, "ids": [vocab[t]], "tokens": [t]} for t in tokens},
    }


def lines_of(path: Path) -> list[str]:
    """The lines of a text file, which a line feed ends, and no other character."""
    lines = path.read_bytes().decode().replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


MAKERS = {
    "source.spm": marian_state,
    "spiece.model": t5_state,
    "vocab.json": byte_level_state,
    "vocab.txt": word_piece_state,
}
