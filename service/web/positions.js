// Where a point of the map is: in pixels of the scene, in its reference system, on Earth, and how long a metre is.

const EARTH_M = 2 * Math.PI * 6378137; // the equator, which is the width of Web Mercator
const ECCENTRICITY_2 = 0.00669437999014; // of WGS 84, squared
const TILE_PX = 256;

/** The positions of a map, from its TileJSON. */
export class Positions {
  constructor(tilejson) {
    this._tilejson = tilejson;
    this.isGeoreferenced = Boolean(tilejson.crs);
    this.northDeg = tilejson.north_deg ?? null;
    this.crs = tilejson.scene_crs ?? null;
  }

  /** A point of the map as row and column (not rounded), lon and lat, and x and y of the scene; null what is unknown. */
  at({ lat, lng }) {
    const lonLat = this.isGeoreferenced ? { lon: wrapped(lng), lat } : null;
    const pixel = this.isGeoreferenced ? this._fromTable(lng, lat) : { row: lat, col: lng };
    const { transform, rows, cols } = this._tilejson;
    const isInside = Boolean(pixel) && pixel.row >= 0 && pixel.col >= 0 && pixel.row < rows && pixel.col < cols;
    const ground = pixel && transform && {
      x: transform[0] * pixel.col + transform[1] * pixel.row + transform[2],
      y: transform[3] * pixel.col + transform[4] * pixel.row + transform[5],
    };
    return { lonLat, pixel, ground: ground || null, isInside };
  }

  /** Row and column, bilinear between the points of the server's table; null outside of it. */
  _fromTable(lng, lat) {
    const table = this._tilejson.pixel_table;
    if (!table) return null;
    const last = table.cols.length - 1;
    const turns = 360 * Math.floor((lng - table.west) / 360);
    const across = ((lng - turns - table.west) / (table.east - table.west)) * last;
    const down = ((table.north - lat) / (table.north - table.south)) * last;
    if (!(across >= 0 && across <= last && down >= 0 && down <= last)) return null;
    const [left, top] = [Math.min(Math.floor(across), last - 1), Math.min(Math.floor(down), last - 1)];
    const [right, low] = [across - left, down - top];
    const between = (values) =>
      (1 - low) * ((1 - right) * values[top][left] + right * values[top][left + 1]) +
      low * ((1 - right) * values[top + 1][left] + right * values[top + 1][left + 1]);
    return { row: between(table.rows), col: between(table.cols) };
  }

  /** Metres on the ground, or pixels of the scene, across one pixel of the screen. */
  lengthOfScreenPixel(center, zoom) {
    if (this.isGeoreferenced) {
      const latitude = (center.lat * Math.PI) / 180;
      const shrinkage = Math.cos(latitude) / Math.sqrt(1 - ECCENTRICITY_2 * Math.sin(latitude) ** 2);
      return { length: (EARTH_M / TILE_PX / 2 ** zoom) * shrinkage, isMetres: true };
    }
    const pixels = 2 ** (this._tilejson.maxzoom - zoom);
    const width_m = this._tilejson.pixel_m;
    return width_m ? { length: pixels * width_m, isMetres: true } : { length: pixels, isMetres: false };
  }

  /** A number of digits after the point for coordinates of the scene: a tenth of a pixel. */
  get digits() {
    const [a, , , d] = this._tilejson.transform ?? [1, 0, 0, 0];
    return Math.min(8, Math.max(0, Math.ceil(1 - Math.log10(Math.hypot(a, d)))));
  }
}

const wrapped = (lon) => ((((lon + 180) % 360) + 360) % 360) - 180;

/** The longest round length (1, 2 or 5 times a power of ten) up to a limit, with its text and its size on the screen. */
export function scaleFor({ length, isMetres }, limit_px) {
  const longest = length * limit_px;
  const power = 10 ** Math.floor(Math.log10(longest));
  const round = [5, 2, 1].map((factor) => factor * power).find((each) => each <= longest * (1 + 1e-9));
  const shown = isMetres ? withUnit(round) : `${Number(round.toPrecision(1))} px`;
  return { text: shown, width_px: round / length };
}

function withUnit(metres) {
  const [size, unit] = metres >= 1000 ? [metres / 1000, "km"] : metres >= 1 ? [metres, "m"] : metres >= 0.01 ? [metres * 100, "cm"] : [metres * 1000, "mm"];
  return `${Number(size.toPrecision(1))} ${unit}`;
}
