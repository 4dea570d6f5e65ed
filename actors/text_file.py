"""Text that users hand in: editors and shells of Windows write it in UTF-16, or with a mark at its start."""

from __future__ import annotations

import codecs


def as_utf8(data: bytes) -> bytes:
    """Return the content of a text file in UTF-8, without a byte order mark."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace").encode()
    return data.removeprefix(codecs.BOM_UTF8)
