"""The files of a published tokenizer, as the content of one `tokenizer.json`.

A SentencePiece model holds only a vocabulary and how texts are cut; what is put around them is in
the class that reads it. Here the library `tokenizers` is told to do the same.

Source: the classes `T5Tokenizer`, `LlamaTokenizer` and `MarianTokenizer` of `transformers`.
"""

import json
from collections.abc import Mapping
from typing import Any

from minitransformer.checks import library

State = dict[str, Any]
Settings = Mapping[str, State]

KINDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("tokenizer.json",): (),
    ("source.spm", "target.spm", "vocab.json"): ("marian",),
    ("spiece.model",): ("t5", "mt5"),
    ("tokenizer.model",): ("llama", "mistral"),
}
"""Files that make a tokenizer, of which the first that are all there are read; and for whom."""
SETTINGS = ("special_tokens_map.json", "tokenizer_config.json", "added_tokens.json", "config.json")
KEPT = ("chat_template.jinja", "target_vocab.json", "vocab.txt", "merges.txt")  # not read here
FILES = tuple(dict.fromkeys([*(n for kind in KINDS for n in kind), *SETTINGS, *KEPT]))

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")


def content_of(files: Mapping[str, bytes], settings: Settings, side: str) -> tuple[State, Any]:
    """The content of a `tokenizer.json`, and what cuts texts before it if SentencePiece does."""
    kind = next((kind for kind in KINDS if files.keys() >= set(kind)), None)
    if kind is None:
        raise FileNotFoundError(
            f"there is no tokenizer: no {', or '.join(' + '.join(names) for names in KINDS)}; "
            "`transformers` makes a tokenizer.json of other files: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    if side not in ("source", "target")[: 2 if "target.spm" in kind else 1]:
        raise ValueError(f"side is {side!r}, but there is one tokenizer for both sides")
    config = settings["tokenizer_config.json"]
    if not KINDS[kind]:
        return as_configured(parsed(files, "tokenizer.json"), config), None
    named = config.get("tokenizer_class") or settings["config.json"].get("model_type")
    family = str(named or KINDS[kind][0]).removesuffix("Fast").removesuffix("Tokenizer").lower()
    if family not in KINDS[kind]:
        known = " or ".join(KINDS[kind])
        raise ValueError(
            f"{kind[0]} is for {named!r}, expected {known}; or convert it to a tokenizer.json"
        )
    if "target_vocab.json" in files or config.get("separate_vocabs"):
        raise ValueError("there is a vocabulary for each side, expected one for both")
    file = files[f"{side}.spm" if family == "marian" else kind[0]]
    cut = library("sentencepiece", "hub").SentencePieceProcessor(model_proto=file)
    made = for_pieces(family, cut, parsed(files, "vocab.json"), config)
    for token in added_later(settings):
        if made.token_to_id(token["content"]) is None:
            made.add_tokens([library("tokenizers", "hub").AddedToken(**token)])
    return json.loads(made.to_str()), cut


def as_configured(state: State, config: State) -> State:
    """The content of a `tokenizer.json`, in which the settings beside it have the last word.

    That holds for the classes that read these settings; others take the file as it is.
    """
    name = str(config.get("tokenizer_class")).removesuffix("Fast").removesuffix("Tokenizer")
    changes: dict[str, dict[str, str]] = {}  # by the type of a part: its entry, by the setting
    if name in ("Bert", "DistilBert"):
        entries = {"do_lower_case": "lowercase", "tokenize_chinese_chars": "handle_chinese_chars"}
        changes["BertNormalizer"] = entries | {"strip_accents": "strip_accents"}
    elif name in ("GPT2", "Roberta", "Bart"):
        entries = {"add_prefix_space": "add_prefix_space"}
        changes = {"ByteLevel": entries, "RobertaProcessing": entries}
    for part in ("normalizer", "pre_tokenizer", "post_processor"):
        kind = str((state.get(part) or {}).get("type"))
        for setting, entry in changes.get(kind, {}).items():
            if setting in config:
                state[part][entry] = config[setting]
    return state


def for_pieces(family: str, cut: Any, vocab: State, config: State) -> Any:
    """What finds the ids of SentencePiece's tokens; Marian has them in a file."""
    vocab = vocab or {cut.id_to_piece(index): index for index in range(cut.get_piece_size())}
    sentinels = [f"<extra_id_{n}>" for n in reversed(range(config.get("extra_ids", 100)))]
    if family not in ("t5", "mt5"):
        sentinels = []
    vocab |= {token: len(vocab) + place for place, token in enumerate(sentinels)}
    tk = library("tokenizers", "hub")
    made = tk.Tokenizer(tk.models.WordLevel(vocab, "<unk>"))
    special = [token for token in (*SPECIAL, *sentinels) if token in vocab]
    made.add_special_tokens([tk.AddedToken(token, normalized=False) for token in special])
    is_llama = family in ("llama", "mistral")
    ends = {"marian": r"\A +| +\z", "t5": r"\A +", "mt5": r"\A +"}.get(family, r"\A ")
    joined = [tk.decoders.Replace("▁", " "), tk.decoders.ByteFallback(), tk.decoders.Fuse()]
    made.decoder = tk.decoders.Sequence([*joined, tk.decoders.Replace(tk.Regex(ends), "")])
    before = ["<s>"] if config.get("add_bos_token", is_llama) else []
    after = ["</s>"] if config.get("add_eos_token", not is_llama) else []
    made.post_processor = tk.processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *before, "$B", *after],
        special_tokens=[(token, vocab[token]) for token in (*before, *after)],
    )
    return made


def added_later(settings: Settings) -> list[State]:
    """Tokens that were added to an older file's vocabulary, in order of id."""
    special: set[str | None] = set()
    for value in settings["special_tokens_map.json"].values():
        special |= {text_of(token) for token in (value if isinstance(value, list) else [value])}
    found = {
        index: {"content": token, "special": token in special, "normalized": token not in special}
        for token, index in settings["added_tokens.json"].items()
    }
    for index, token in settings["tokenizer_config.json"].get("added_tokens_decoder", {}).items():
        found[int(index)] = {key: value for key, value in token.items() if key != "__type"}
    return [found[index] for index in sorted(found)]


def from_state(state: State) -> Any:
    """The tokenizer of the library `tokenizers` that has this content."""
    return library("tokenizers", "hub").Tokenizer.from_str(json.dumps(state))


def by_library(make: Any, *args: Any) -> Any:
    """What a library makes of files; what it does not take is a ValueError."""
    try:
        return make(*args)
    except (FileNotFoundError, ImportError, ValueError):
        raise
    except Exception as error:  # the libraries' own errors have no common type
        raise ValueError(f"the files are damaged or no tokenizer's: {error}") from error


def parsed(files: Mapping[str, bytes], name: str) -> State:
    """The object in a JSON file; an empty one where there is no file."""
    try:
        content = json.loads(files.get(name, b"{}"))
    except ValueError as error:
        raise ValueError(f"{name} is damaged or no JSON file: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{name} holds a {type(content).__name__}, expected an object")
    return content


def text_of(token: Any) -> str | None:
    """The text of a token, which may be given with all its flags."""
    return token["content"] if isinstance(token, dict) else token
