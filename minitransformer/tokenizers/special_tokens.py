"""Tokens that no model finds: added ones, which are cut out of a text, and those put around it.

Source: the library `tokenizers`: its `added_tokens` and the step `post_processor`.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from minitransformer.tokenizer_file import abbreviated
from minitransformer.tokenizers.pre_tokenization import WHITE, step
from minitransformer.tokenizers.unigram import Ids

LEADING_SPACE = re.compile(f"[{re.escape(WHITE)}]*")

Found = tuple[int, str, str | None]
"""A part of a text: where it begins, what it is, and the added token that it is, if it is one."""
Finder = Callable[[str, bool], Iterator[Found]]
Surround = Callable[[list[int], list[int] | None], tuple[list[int], list[int]]]


@dataclass(frozen=True)
class AddedToken:
    """A token that is found in a text before any other.

    Args:
        content: its text.
        id: its number.
        single_word: whether it is not found inside of a word.
        lstrip, rstrip: whether it takes the white space before and after it along.
        normalized: whether it is looked for after the text is normalized, and as it is then.
        special: whether it is for the model, and no text.
    """

    content: str
    id: int
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Self:
        """An entry of `added_tokens`."""
        try:
            return cls(**{"normalized": not found.get("special"), **found})
        except TypeError as error:
            raise ValueError(f"added token {abbreviated(found)}: {error}") from error


def vocabulary(model: Mapping[str, Any]) -> dict[str, int]:
    """The ids of a file's model by their tokens.

    Raises:
        ValueError: unless each token has one of the ids 0 to n-1.
    """
    vocab = model.get("vocab")
    if isinstance(vocab, list):
        vocab = {token: index for index, (token, _) in enumerate(vocab)}
    if not isinstance(vocab, dict) or set(vocab.values()) != set(range(len(vocab))):
        raise ValueError("model.vocab must give each of its n tokens one of the ids 0 to n-1")
    return vocab


def with_added(vocab: Ids, added: Iterable[AddedToken]) -> dict[str, int]:
    """The vocabulary with the added tokens that it lacks.

    Raises:
        ValueError: unless these follow on it, in order, for so the library would number them.
    """
    ids = dict(vocab)
    for token in added:
        expected = ids.setdefault(token.content, len(ids))
        if token.id != expected:
            raise ValueError(
                f"added token {abbreviated(token.content)} has id {token.id}, expected {expected}"
            )
    return ids


def finder(tokens: Iterable[AddedToken], normalize: Callable[[str], str] = str) -> Finder:
    """What finds these tokens in a text, with what lies between them.

    Of tokens that begin at the same place the longest is found.

    Args:
        tokens: those to look for.
        normalize: how the text will have been changed, and so they are.

    Example:
        >>> find = finder([AddedToken("<mask>", 4, lstrip=True, special=True)])
        >>> list(find("one <mask>.", True)), list(find("one <mask>.", False))
        ([(0, 'one', None), (3, ' <mask>', '<mask>'), (10, '.', None)], [(0, 'one <mask>.', None)])
    """
    # Of two that look alike the special one counts, or the first.
    by_text: dict[str, AddedToken] = {}
    for token in sorted(tokens, key=lambda token: not token.special):
        by_text.setdefault(normalize(token.content), token)
    by_text.pop("", None)
    any_of = "|".join(map(re.escape, sorted(by_text, key=len, reverse=True)))
    pattern = re.compile(any_of or r"(?!)")

    def find(text: str, parse_special: bool) -> Iterator[Found]:
        done = 0
        for match in pattern.finditer(text):
            token, (start, end) = by_text[match[0]], match.span()
            if token.special and not parse_special:
                continue
            if token.single_word and (
                is_word(text[max(start - 1, 0) : start]) or is_word(text[end : end + 1])
            ):
                continue
            if token.lstrip and start > done:
                start = done + len(text[done:start].rstrip(WHITE))
            if token.rstrip and (space := LEADING_SPACE.match(text, end)):
                end = space.end()
            if done < start:
                yield done, text[done:start], None
            yield start, text[start:end], token.content
            done = end
        if done < len(text):
            yield done, text[done:], None

    return find


def is_word(character: str) -> bool:
    """Whether a character belongs to a word; none does not."""
    if not character or character in "\u200c\u200d":  # these two join letters
        return bool(character)
    category = unicodedata.category(character)
    return category[0] in "LM" or category in ("Nd", "Nl", "Pc")


# --- post_processors: special tokens around the ids of a text, or of two


def post_processor(found: Mapping[str, Any] | None) -> Surround:
    """The step that a file's `post_processor` names: ids and token types from ids.

    Example:
        >>> bert = {"type": "BertProcessing", "cls": ["[CLS]", 1], "sep": ["[SEP]", 2]}
        >>> post_processor(bert)([7, 8], [9])
        ([1, 7, 8, 2, 9, 2], [0, 0, 0, 0, 1, 1])
    """
    single, pair = step("post_processor", found, POST_PROCESSORS) if found else AS_THEY_ARE

    def surround(first: list[int], second: list[int] | None) -> tuple[list[int], list[int]]:
        texts = {"A": first, "B": second or []}
        ids: list[int] = []
        types: list[int] = []
        for part, kind in single if second is None else pair:
            new = texts[part] if isinstance(part, str) else part
            ids += new
            types += [kind] * len(new)
        return ids, types

    return surround


Template = Sequence[tuple[str | list[int], int]]
"""What stands one after the other: text "A" or "B" or these ids; and of which token type it is."""
AS_THEY_ARE: tuple[Template, Template] = [("A", 0)], [("A", 0), ("B", 1)]


def bert_processing(sep: tuple[str, int], cls: tuple[str, int]) -> tuple[Template, Template]:
    begin, end = [cls[1]], [sep[1]]
    single: Template = [(begin, 0), ("A", 0), (end, 0)]
    return single, [*single, ("B", 1), (end, 1)]


def roberta_processing(
    sep: tuple[str, int],
    cls: tuple[str, int],
    trim_offsets: bool = True,
    add_prefix_space: bool = True,
) -> tuple[Template, Template]:
    """Two separators between texts, which are of one type; the last two options do nothing."""
    begin, end = [cls[1]], [sep[1]]
    single: Template = [(begin, 0), ("A", 0), (end, 0)]
    return single, [*single, (end, 0), ("B", 0), (end, 0)]


def template_processing(
    single: Sequence[Mapping[str, Any]],
    pair: Sequence[Mapping[str, Any]],
    special_tokens: Mapping[str, Any],
) -> tuple[Template, Template]:
    """Special tokens and texts in the order of the file."""

    def template(parts: Sequence[Mapping[str, Any]]) -> Template:
        found: list[tuple[str | list[int], int]] = []
        for written in parts:
            ((kind, entry),) = written.items()
            name = entry["id"]
            if kind != "Sequence" and name not in special_tokens:
                raise ValueError(f"the template's {name!r} is none of its special_tokens")
            part = name if kind == "Sequence" else special_tokens[name]["ids"]
            found.append((part, entry["type_id"]))
        return found

    return template(single), template(pair)


def byte_level(
    add_prefix_space: bool = True, trim_offsets: bool = True, use_regex: bool = True
) -> tuple[Template, Template]:
    """Trims offsets, which are not kept here, and adds nothing."""
    return AS_THEY_ARE


def processor_sequence(processors: Sequence[Mapping[str, Any]]) -> tuple[Template, Template]:
    """Several, of which one may add something."""
    steps = [step("post_processor", found, POST_PROCESSORS) for found in processors]
    adding = [found for found in steps if found != AS_THEY_ARE]
    if len(adding) > 1:
        raise ValueError(f"{len(adding)} post_processors add tokens, expected at most 1")
    return adding[0] if adding else AS_THEY_ARE


POST_PROCESSORS: dict[str, Callable[..., tuple[Template, Template]]] = {
    "BertProcessing": bert_processing,
    "ByteLevel": byte_level,
    "RobertaProcessing": roberta_processing,
    "Sequence": processor_sequence,
    "TemplateProcessing": template_processing,
}
