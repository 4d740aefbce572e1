"""The files of a published tokenizer, as the content of one `tokenizer.json`.

Older files hold only a vocabulary; what is done with it is in the class that reads them. Here the
library `tokenizers` is told to do the same.

Source: the classes `GPT2Tokenizer`, `RobertaTokenizer`, `Qwen2Tokenizer`, `BertTokenizer`,
`T5Tokenizer`, `LlamaTokenizer` and `MarianTokenizer` of the library `transformers`.
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
    ("vocab.json", "merges.txt"): ("gpt2", "roberta", "bart", "qwen2", "qwen3"),
    ("vocab.txt",): ("bert", "distilbert"),
    ("spiece.model",): ("t5", "mt5"),
    ("tokenizer.model",): ("llama", "mistral"),
}
"""Files that make a tokenizer, of which the first that are all there are read; and for whom."""
SETTINGS = ("special_tokens_map.json", "tokenizer_config.json", "added_tokens.json", "config.json")
KEPT = ("chat_template.jinja", "target_vocab.json")  # not read here
FILES = (*(name for kind in KINDS for name in kind), *SETTINGS, *KEPT)

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>")
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def content_of(files: Mapping[str, bytes], settings: Settings, side: str) -> tuple[State, Any]:
    """The content of a `tokenizer.json`, and what cuts texts before it if SentencePiece does."""
    kind = next((kind for kind in KINDS if files.keys() >= set(kind)), None)
    if kind is None:
        wanted = ", or ".join(" + ".join(names) for names in KINDS)
        raise FileNotFoundError(f"there is no tokenizer: no {wanted}")
    if side not in ("source", "target")[: 2 if "target.spm" in kind else 1]:
        raise ValueError(f"side is {side!r}, but there is one tokenizer for both sides")
    config, cut = settings["tokenizer_config.json"], None
    if not KINDS[kind]:
        return as_configured(parsed(files, "tokenizer.json"), config), None
    family = family_of(kind, files, settings)
    if kind == ("vocab.txt",):
        made = word_piece(lines_of(files["vocab.txt"]), config)
    elif kind == ("vocab.json", "merges.txt"):
        made = byte_level(family, files, bool(config.get("add_prefix_space")))
    else:
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


def family_of(kind: tuple[str, ...], files: Mapping[str, bytes], settings: Settings) -> str:
    """For which family of models older files are; a ValueError for one that is not known."""
    config = settings["tokenizer_config.json"].get("tokenizer_class")
    model = settings["config.json"].get("model_type")
    family = str(config or model).removesuffix("Fast").removesuffix("Tokenizer").lower()
    if not (config or model):
        marks = {"<mask>": "roberta", "<|endoftext|>": "gpt2"} if "merges.txt" in kind else {}
        vocab = parsed(files, "vocab.json")
        family = next((name for mark, name in marks.items() if mark in vocab), "")
        family = family if marks else KINDS[kind][0]
    if family not in KINDS[kind]:
        raise ValueError(
            f"tokenizer_class is {config!r} and model_type {model!r}; without a tokenizer.json, "
            f"{' + '.join(kind)} is read for {', '.join(KINDS[kind])}: name one of them as the "
            "model_type of a config.json beside it, or convert it to a tokenizer.json"
        )
    return family


def word_piece(tokens: list[str], config: State) -> Any:
    """BERT's tokenizer."""
    roles = ("unk", "sep", "cls", "pad", "mask")
    return library("tokenizers", "hub").implementations.BertWordPieceTokenizer(
        {token: index for index, token in enumerate(tokens)},
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case", True),
        **{f"{r}_token": text_of(config.get(f"{r}_token")) or f"[{r.upper()}]" for r in roles},
    )


def byte_level(family: str, files: Mapping[str, bytes], space: bool) -> Any:
    """GPT-2's tokenizer, RoBERTa's or BART's with tokens around texts, or Qwen's."""
    tk, vocab = library("tokenizers", "hub"), parsed(files, "vocab.json")
    merges = [tuple(line.split(" ")) for line in lines_of(files["merges.txt"])]
    merges = [pair for pair in merges if pair[0] not in ("", "#version:")]
    made = tk.implementations.ByteLevelBPETokenizer(vocab, merges, add_prefix_space=space)
    if family.startswith("qwen"):
        cut = tk.pre_tokenizers.Split(tk.Regex(QWEN_PATTERN), "isolated")
        spell = tk.pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=False)
        made.normalizer = tk.normalizers.NFC()
        made.pre_tokenizer = tk.pre_tokenizers.Sequence([cut, spell])
    elif family in ("roberta", "bart"):
        sep, cls = ("</s>", vocab["</s>"]), ("<s>", vocab["<s>"])
        made.post_processor = tk.processors.RobertaProcessing(sep, cls, add_prefix_space=space)
    add_special(made, [token for token in SPECIAL if token in vocab])
    return made


def for_pieces(family: str, cut: Any, vocab: State, config: State) -> Any:
    """What finds the ids of SentencePiece's tokens; Marian has them in a file."""
    vocab = vocab or {cut.id_to_piece(index): index for index in range(cut.get_piece_size())}
    sentinels = [f"<extra_id_{n}>" for n in reversed(range(config.get("extra_ids", 100)))]
    if family not in ("t5", "mt5"):
        sentinels = []
    vocab |= {token: len(vocab) + place for place, token in enumerate(sentinels)}
    tk = library("tokenizers", "hub")
    made = tk.Tokenizer(tk.models.WordLevel(vocab, "<unk>"))
    add_special(made, [token for token in (*SPECIAL, *sentinels) if token in vocab])
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


def add_special(made: Any, tokens: list[str]) -> None:
    """Make these tokens special; a mask takes the space before it along."""
    kind = library("tokenizers", "hub").AddedToken
    made.add_special_tokens([kind(t, lstrip=t == "<mask>", normalized=False) for t in tokens])


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


def lines_of(file: bytes) -> list[str]:
    """The lines of a text file, which a line feed ends, and no other character."""
    return file.decode().replace("\r\n", "\n").removesuffix("\n").split("\n")


def text_of(token: Any) -> str | None:
    """The text of a token, which may be given with all its flags."""
    return token["content"] if isinstance(token, dict) else token
