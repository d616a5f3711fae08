"""Writes a toy model as a GGUF file, once: an existing file of the same generator is reused."""

import functools
import hashlib
import os
import tempfile
from pathlib import Path

from gguf import GGUFWriter, LlamaFileType, TokenType

from .catalogue import MODELS, Toy
from .layers import Metadata
from .tokenizer import CHAT_TEMPLATE, Vocabulary, vocabulary
from .weights import Weights


@functools.cache
def generator_digest() -> str:
    """Names the generator by its sources, so that a changed generator never serves an old file."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        # Checkouts may differ in line endings; the models must not.
        text = source.read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{source.name}\0{len(text)}\0".encode() + text)
    return digest.hexdigest()[:12]


def ensure(name: str, folder: str | os.PathLike[str]) -> Path:
    """The path of toy model `name` in `folder`; the file is made if it is not there.

    Several processes may call this at once: each writes a file of its own and renames it, and all of them
    write the same bytes.
    """
    toy = MODELS[name]
    path = Path(folder) / f"{name}-{generator_digest()}.gguf"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name_of_temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{name}-", suffix=".part")
    os.close(handle)
    temporary = Path(name_of_temporary)
    try:
        write(toy, temporary, Weights(toy.name, vocabulary()))
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink()
        raise
    return path


def write(toy: Toy, path: Path, weights: Weights) -> None:
    """The model into `path`; it draws its tensors from `weights`, which are empty before."""
    metadata = toy.build(weights)

    writer = GGUFWriter(path, toy.arch)
    writer.add_name(f"toy-{toy.name}")
    writer.add_description(toy.description)
    writer.add_file_type(LlamaFileType.ALL_F32)
    add_metadata(writer, toy.arch, metadata)
    add_tokenizer(writer, vocabulary())
    for tensor, values in weights.tensors.items():
        writer.add_tensor(tensor, values)

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_metadata(writer: GGUFWriter, arch: str, metadata: Metadata) -> None:
    for key, value in metadata.items():
        full = f"{arch}.{key}"
        if isinstance(value, bool):
            writer.add_bool(full, value)
        elif isinstance(value, int):
            writer.add_uint32(full, value)
        elif isinstance(value, float):
            writer.add_float32(full, value)
        else:
            writer.add_array(full, value)


def add_tokenizer(writer: GGUFWriter, words: Vocabulary) -> None:
    normal = len(words.tokens) - len(words.special)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words.tokens)
    writer.add_token_types([TokenType.NORMAL] * normal + [TokenType.CONTROL] * len(words.special))
    writer.add_token_merges([" ".join(pair) for pair in words.merges])
    writer.add_eos_token_id(words.id_of("<|im_end|>"))
    writer.add_pad_token_id(words.id_of("<|endoftext|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
