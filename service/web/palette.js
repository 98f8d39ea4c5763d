// Hides classes of a map tile: entries of the palette of a PNG are made transparent, without decoding it.

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

/** A PNG with a palette, its entries `hidden` transparent; `png` (bytes) itself if it has no such entries. */
export function withHidden(png, hidden) {
  const view = new DataView(png.buffer, png.byteOffset, png.byteLength);
  for (let start = 8; start + 12 <= png.length; start += 12 + view.getUint32(start)) {
    if (String.fromCharCode(...png.subarray(start + 4, start + 8)) !== "tRNS") continue;
    const length = view.getUint32(start);
    const changed = png.slice();
    for (const value of hidden) if (value < length) changed[start + 8 + value] = 0;
    new DataView(changed.buffer).setUint32(start + 8 + length, crcOf(changed.subarray(start + 4, start + 8 + length)));
    return changed;
  }
  return png;
}

function crcOf(bytes) {
  let crc = 0xffffffff;
  for (const byte of bytes) crc = CRC_TABLE[(crc ^ byte) & 0xff] ^ (crc >>> 8);
  return (crc ^ 0xffffffff) >>> 0;
}
