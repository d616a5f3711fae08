from collections.abc import Sequence

def conversation_hash(tokens: Sequence[int]) -> int: ...
def root_key(
    fingerprint: bytes, page_size: int, name_space: str = "", adapters: Sequence[tuple[bytes, float]] = ()
) -> bytes: ...
def page_keys(
    tokens: Sequence[int],
    fingerprint: bytes,
    page_size: int,
    name_space: str = "",
    adapters: Sequence[tuple[bytes, float]] = (),
) -> list[bytes]: ...
