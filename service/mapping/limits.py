"""Limits on the size of scenes. Imports no raster library, because the settings need this module."""

from __future__ import annotations

from dataclasses import dataclass

from hyperscene.errors import SceneTooLarge

# The largest block of a compressed file that a server unpacks.
BLOCK_BYTES = 512 << 20
# The longest row that a server accepts, as float32: 150,000 pixels of 224 bands. Strips hold 16 rows or more.
ROW_BYTES = 128 << 20


@dataclass(frozen=True)
class Limits:
    """Limits that a server sets for scenes; the command line has none."""

    pixels: int
    bands: int
    unpacked_bytes: int
    header_bytes: int

    def check_size(self, name: str, rows: int, cols: int, bands: int) -> None:
        """Refuse a scene that is too large by its header, before anything is allocated."""
        if rows * cols > self.pixels:
            raise SceneTooLarge(f"{name} is {rows} x {cols} pixels; this server accepts {self.pixels}: crop it")
        if bands > self.bands:
            raise SceneTooLarge(f"{name} has {bands} bands; this server accepts {self.bands}: drop some")

    def check_unpacked(self, name: str, unpacked_bytes: int, block_bytes: int) -> None:
        """Refuse a scene that is too large when unpacked, as a whole or by block."""
        if unpacked_bytes > self.unpacked_bytes:
            raise SceneTooLarge(
                f"{name} holds {unpacked_bytes} bytes when unpacked; this server accepts {self.unpacked_bytes}: crop it"
            )
        if block_bytes > BLOCK_BYTES:
            raise SceneTooLarge(
                f"{name} is compressed in blocks of {block_bytes >> 20} MB, which are unpacked as a whole; at most "
                f"{BLOCK_BYTES >> 20} MB are accepted: write it with smaller tiles or strips"
            )

    def check_row(self, name: str, cols: int, bands: int) -> None:
        """Refuse rows that are too long, because several are held in memory."""
        row_bytes = 4 * cols * bands
        if row_bytes > ROW_BYTES:
            raise SceneTooLarge(
                f"a row of {name} is {cols} pixels of {bands} bands, {row_bytes >> 20} MB; at most "
                f"{ROW_BYTES >> 20} MB are accepted: crop it, or rotate it by 90 degrees"
            )
