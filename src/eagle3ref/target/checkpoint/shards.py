"""The files of a checkpoint folder as one list of tensors with their places."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eagle3ref.errors import Eagle3RefError
from eagle3ref.target.checkpoint.gguf import refuse_gguf
from eagle3ref.target.checkpoint.header import MAX_HEADER_BYTES, StoredTensor, parse_json, read_header
from eagle3ref.target.checkpoint.wording import count, first_few
from eagle3ref.weights import INDEX_NAME, SINGLE_NAME


@dataclass(frozen=True)
class Shards:
    """What the safetensors files of a folder hold, by their headers; nothing stays open or mapped.

    Args:
        folder: the checkpoint folder.
        files: its files, by name.
        tensors: every tensor of every file, also those that the index forgot.
    """

    folder: Path
    files: tuple[Path, ...]
    tensors: dict[str, StoredTensor]

    @classmethod
    def open(cls, folder: str | Path) -> Shards:
        """Read ``model.safetensors.index.json`` and the header of each shard, or of ``model.safetensors``.

        Raises:
            Eagle3RefError: no safetensors there, an index that is damaged, names a file outside the folder or does not
                agree with the files, a missing shard, a tensor in two of them, or a damaged or truncated file.
        """
        folder = Path(folder)
        index = folder / INDEX_NAME
        if not index.exists():
            if not (folder / SINGLE_NAME).exists():
                refuse_gguf(folder)
                raise _nothing_to_read(folder)
            files: tuple[Path, ...] = (folder / SINGLE_NAME,)
            return cls(folder, files, _all_tensors(folder, files))
        file_of = _read_index(index)
        files = tuple(folder / file for file in sorted(set(file_of.values())))
        missing = [file.name for file in files if not file.exists()]
        if missing:
            raise _disagree(
                index,
                f"no file {first_few(missing)}",
                f"all {count(len(files), 'shard')} that the index names",
                "Download what is missing.",
            )
        tensors = _all_tensors(folder, files)
        _check_index(index, file_of, tensors)
        return cls(folder, files, tensors)


def _all_tensors(folder: Path, files: tuple[Path, ...]) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for tensor in read_header(file):
            other = tensors.setdefault(tensor.name, tensor)
            if other is not tensor:
                raise _disagree(
                    folder,
                    f"{tensor.name} in both {other.path.name} and {file.name}",
                    "every tensor in one file",
                    "Two checkpoints were mixed; download the folder again.",
                )
    return tensors


def _read_index(index: Path) -> dict[str, str]:
    """Tensor name -> file name. Only files of the folder itself: a name with a path in it could point anywhere."""
    try:
        size = index.stat().st_size
        if size > MAX_HEADER_BYTES:
            raise ValueError(f"{size:,} bytes are too many")
        file_of = parse_json(index.read_bytes())["weight_map"]
        names = set(file_of.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        expected = "a weight_map from tensor names to file names"
        raise _disagree(index, f"no weight_map in it ({error})", expected, "Download it again.") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or "\\" in name or not name.endswith(".safetensors"):
            expected = "safetensors files of this folder alone"
            raise _disagree(index, f"the file name {name!r}", expected, "Do not trust this index.")
    found: dict[str, str] = file_of
    return found


def _check_index(index: Path, file_of: dict[str, str], tensors: dict[str, StoredTensor]) -> None:
    wrong = [name for name, file in file_of.items() if name not in tensors or tensors[name].path.name != file]
    if wrong:
        name = wrong[0]
        where = f"in {tensors[name].path.name}" if name in tensors else "in none of the shards"
        raise _disagree(
            index,
            f"{count(len(wrong), 'tensor')} not where the index says, e.g. {name} {where}",
            f"it in {file_of[name]}",
            "Index and shards do not belong together; download both again.",
        )


def _nothing_to_read(folder: Path) -> Eagle3RefError:
    """What lies there instead of safetensors, if anything does."""
    loose, pickled = (sorted(path.name for path in folder.glob(pattern)) for pattern in ("*.safetensors", "*.bin"))
    expected = f"{SINGLE_NAME}, or shards with {INDEX_NAME}"
    if loose:
        return _disagree(folder, f"{first_few(loose)}, and no index", expected, f"Download {INDEX_NAME} too.")
    if pickled:
        return _disagree(folder, f"pickled weights: {first_few(pickled)}", expected, "Convert them to safetensors.")
    return _disagree(folder, "no weight file", expected, "Give the folder that holds config.json and the weights.")


def _disagree(where: Path, found: str, expected: str, action: str) -> Eagle3RefError:
    return Eagle3RefError(f"opening the weights of {where}", found=found, expected=expected, action=action)
