// Which pixels a drawn shape covers. Positions are [row, column] with fractions; pixels are whole numbers.

/** The pixels of a brush of so many pixels in diameter. */
export function pixelsOfDisc([row, col], size) {
  if (size <= 1) return [[Math.floor(row), Math.floor(col)]];
  const radius = size / 2;
  const found = [];
  for (let r = Math.floor(row - radius); r <= row + radius; r++) {
    for (let c = Math.floor(col - radius); c <= col + radius; c++) {
      if (Math.hypot(r + 0.5 - row, c + 0.5 - col) <= radius) found.push([r, c]);
    }
  }
  return found.length ? found : [[Math.floor(row), Math.floor(col)]];
}

/** Positions along a line, at most half a pixel apart. */
export function pixelsOfLine([row, col], [toRow, toCol]) {
  const steps = Math.max(1, Math.ceil(2 * Math.max(Math.abs(toRow - row), Math.abs(toCol - col))));
  return Array.from({ length: steps + 1 }, (_, step) => [row + ((toRow - row) * step) / steps, col + ((toCol - col) * step) / steps]);
}

/** All pixels that a rectangle touches. */
export function pixelsOfRectangle([row, col], [toRow, toCol]) {
  const [top, bottom] = [Math.min(row, toRow), Math.max(row, toRow)].map(Math.floor);
  const [left, right] = [Math.min(col, toCol), Math.max(col, toCol)].map(Math.floor);
  const found = [];
  for (let r = top; r <= bottom; r++) for (let c = left; c <= right; c++) found.push([r, c]);
  return found;
}

/** The pixels whose centre lies inside a polygon, by the even-odd rule. */
export function pixelsOfPolygon(corners) {
  const rows = corners.map(([row]) => row);
  const found = [];
  for (let r = Math.floor(Math.min(...rows)); r <= Math.max(...rows); r++) {
    const crossings = [];
    corners.forEach(([row, col], index) => {
      const [nextRow, nextCol] = corners[(index + 1) % corners.length];
      if (row > r + 0.5 !== nextRow > r + 0.5) crossings.push(col + ((r + 0.5 - row) / (nextRow - row)) * (nextCol - col));
    });
    crossings.sort((one, other) => one - other);
    for (let index = 0; index + 1 < crossings.length; index += 2) {
      for (let c = Math.ceil(crossings[index] - 0.5); c + 0.5 < crossings[index + 1]; c++) found.push([r, c]);
    }
  }
  return found;
}
