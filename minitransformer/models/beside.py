"""The tokenizers in a published model's folder: published ones, or ones of this package."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from minitransformer.models.pretrained import CONFIG, TOKENIZERS, vocabularies
from minitransformer.tokenization.published import PublishedTokenizer
from minitransformer.tokenization.published_files import FILES as PUBLISHED_FILES
from minitransformer.tokenization.published_files import KINDS
from minitransformer.tokenization.tokenizer import ROLES, Tokenizer
from minitransformer.tokenization.tokenizer_file import write_json

__all__ = ["check_files_come_back", "read_tokenizers", "write_tokenizers"]

FILES = tuple({*PUBLISHED_FILES, *TOKENIZERS.values()} - {CONFIG})


def write_tokenizers(folder: Path, tokenizers: Mapping[str, Tokenizer]) -> None:
    """Write the files of the tokenizers; two published ones share theirs."""
    for side, tokenizer in tokenizers.items():
        if isinstance(tokenizer, PublishedTokenizer):
            tokenizer.save_pretrained(folder)
        else:
            tokenizer.save(folder / TOKENIZERS[side])


def read_tokenizers(folder: Path, config: Any) -> dict[str, Tokenizer]:
    """The tokenizers that lie in a folder, by side; none if there are no files of any."""
    found: dict[str, Tokenizer] = {}
    for side in vocabularies(config):
        try:
            found[side] = Tokenizer.load(folder / TOKENIZERS[side])
        except (FileNotFoundError, ValueError):  # none of this package's
            if any(all((folder / name).is_file() for name in names) for names in KINDS):
                target = side == "tgt" and (folder / "target.spm").is_file()
                found[side] = PublishedTokenizer.from_pretrained(
                    folder, "target" if target else "source"
                )
    return found


def check_files_come_back(tokenizers: Mapping[str, Tokenizer], config: Any, content: Any) -> None:
    """Raise an error unless these tokenizers, beside that `config.json`, are read as they are."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_json(content, folder / CONFIG)
        write_tokenizers(folder, tokenizers)
        again = read_tokenizers(folder, config)
    for side, tokenizer in tokenizers.items():
        found, kind = again.get(side), type(tokenizer).__name__
        if found is None or content_of(found) != content_of(tokenizer):
            raise ValueError(
                f"tokenizer {side}, a {kind}, cannot be saved beside this model: it would be read "
                f"as a {type(found).__name__} with other tokens or settings"
            )


def content_of(tokenizer: Tokenizer) -> tuple[Any, ...]:
    """What a tokenizer is, without the model's configuration, which is beside it."""
    if not isinstance(tokenizer, PublishedTokenizer):
        return type(tokenizer), tokenizer.to_dict()
    files = {name: content for name, content in tokenizer.files.items() if name != CONFIG}
    roles = [getattr(tokenizer, f"{role}_id") for role in ROLES]
    return type(tokenizer), files, tokenizer.side, roles
