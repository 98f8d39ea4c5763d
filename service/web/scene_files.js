// Checks the chosen files by their first bytes, keeps those of a product, and names the missing file of an ENVI pair.

const ENVI_EXTENSIONS = ["img", "bsq", "bil", "bip", "dat", "raw", ""];

const HDF5_EXTENSIONS = ["h5", "he5", "hdf", "hdf5", "nc", "nc4"];
const IN_PRODUCTS = ["tif", "tiff", "geotiff", "jp2", "jpeg2000", "bsq", "bil", "bip", "hdr", "xml"];
const IMAGE = /-SPECTRAL_IMAGE.*\.(?!hdr$|xml$)\w+$/i;
const IN_FOLDERS = /^(?<stem>(?:ENMAP|DESIS).+)-(?:METADATA\.XML|SPECTRAL_IMAGE.*)$/i; // products of several files
const SENSORS = [ // name, and file names with level and date
  ["EnMAP", /^ENMAP.*?-____(?<level>L\w\w)-.*?_(?<date>\d{8})T\d{6}Z/i],
  ["DESIS", /^DESIS-HSI-(?<level>L\w\w)-.*-(?<date>\d{8})T/i],
  ["PRISMA", /^PRS_(?<level>L\w\w?)_\w+?_(?<date>\d{8})/i],
  ["EMIT", /^EMIT_(?<level>L\w\w)_(?:RFL|RAD)_\d+_(?<date>\d{8})T/i],
];
const MAX_FILES = 32; // that the server takes

/** The sensor, level and date that a file's name tells, or "". */
function productOf(name) {
  for (const [sensor, pattern] of SENSORS) {
    const found = pattern.exec(name)?.groups;
    if (found) return `${sensor} ${found.level.toUpperCase()} of ${found.date.replace(/(\d{4})(\d\d)(\d\d)/, "$1-$2-$3")}`;
  }
  return "";
}

/** Of the chosen files, those that belong to a product; all of them if there is none. */
export function filesOfProduct(files) {
  const stem = files.map((file) => IN_FOLDERS.exec(file.name)?.groups.stem).find(Boolean);
  if (stem) {
    return files.filter(({ name }) => (name.startsWith(`${stem}-`) ? IN_PRODUCTS.includes(extensionOf(name)) : IN_FOLDERS.test(name)));
  }
  const cubes = files.filter(({ name }) => HDF5_EXTENSIONS.includes(extensionOf(name)));
  return cubes.length ? cubes : files;
}

/** The files of dropped items; folders are read with the folders in them. */
export async function droppedFiles(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()); // only until the event is over
  const plain = [...transfer.files];
  if (!entries.some((entry) => entry?.isDirectory)) return plain;
  const files = await Promise.all(entries.filter(Boolean).map(filesOfEntry));
  return files.flat();
}

async function filesOfEntry(entry) {
  if (entry.isFile) return [await new Promise((resolve, reject) => entry.file(resolve, reject))];
  const reader = entry.createReader();
  const found = [];
  for (;;) { // in parts of 100
    const part = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!part.length) return found;
    for (const inner of part) found.push(...(await filesOfEntry(inner)));
  }
}

/** A file's type: "tiff", "header", "jpeg" (JPEG 2000), "archive", "cube" (HDF5), "metadata", "array", "data" (of ENVI) or "other". */
async function typeOf(file) {
  const start = new Uint8Array(await file.slice(0, 4).arrayBuffer());
  const magic = String.fromCharCode(...start);
  if (["II*\0", "MM\0*", "II+\0", "MM\0+"].includes(magic)) return "tiff";
  if (magic === "ENVI") return "header";
  if (["\0\0\0\x0c", "\xffO\xffQ"].includes(magic)) return "jpeg";
  if (magic === "PK\x03\x04" || (magic.startsWith("\x1f\x8b") && /\.(tar\.gz|tgz)$/i.test(file.name))) return "archive";
  if (magic === "\x89HDF" || HDF5_EXTENSIONS.includes(extensionOf(file.name))) return "cube";
  if (/METADATA\.XML$/i.test(file.name)) return "metadata";
  if (["npy", "mat"].includes(extensionOf(file.name))) return "array";
  return ENVI_EXTENSIONS.includes(extensionOf(file.name)) ? "data" : "other";
}

const extensionOf = (name) => (name.includes(".") ? name.split(".").pop().toLowerCase() : "");
const stemOf = (name) => (name.includes(".") ? name.slice(0, name.lastIndexOf(".")) : name);

/** Check whether the chosen files are a scene, and describe what is missing or wrong. */
export async function checkFiles(files) {
  if (!files.length) return { isComplete: false, text: "" };
  let types;
  try {
    types = await Promise.all(files.map(typeOf));
  } catch {
    return { isComplete: false, isInvalid: true, text: "A chosen file cannot be read: it was moved or changed. Choose it again." };
  }
  const all = (type) => files.filter((_, index) => types[index] === type);
  const [tiffs, headers, data, others] = ["tiff", "header", "data", "other"].map(all);
  const product = checkProduct(files, types);
  if (product) return product;
  if (files.length === 1 && tiffs.length) return { isComplete: true, text: "A GeoTIFF, ready to send." };
  if (files.length === 1 && headers.length) {
    const stem = stemOf(headers[0].name);
    const name = ENVI_EXTENSIONS.includes(extensionOf(stem)) && stem.includes(".") ? stem : `${stem}.img`;
    return { isComplete: false, text: `${headers[0].name} is an ENVI header. Add its data file, for example ${name}.` };
  }
  if (files.length === 1 && data.length) {
    return { isComplete: false, text: `${data[0].name} is an ENVI data file. Add its header, ${stemOf(data[0].name)}.hdr.` };
  }
  if (files.length === 2 && headers.length === 1 && data.length + others.length === 1) {
    return { isComplete: true, text: "An ENVI data file and its header, ready to send." };
  }
  const wrong = others[0] ?? files[1];
  const text = others.length
    ? `${wrong.name} is neither a GeoTIFF nor an ENVI file, and no product. Remove it and choose a scene.`
    : "A scene is one GeoTIFF, or one ENVI data file and its header. Remove the other files.";
  return { isComplete: false, isInvalid: true, text };
}

/** The check of files that are, or should be, a product; null for others. */
function checkProduct(files, types) {
  const has = (type) => types.includes(type);
  const known = productOf(files[0].name) || files.map(({ name }) => productOf(name)).find(Boolean);
  const ready = (what) => ({ isComplete: true, text: `${known || what}, ready to send.` });
  if (has("array")) {
    return { isComplete: false, isInvalid: true, text: "Arrays (.npy, .mat) are mapped by the command line only: hyperscene classify." };
  }
  if (has("archive") && files.length === 1) return ready("An archive of a product");
  if (types.every((type) => type === "cube")) return ready("An HDF5 or netCDF file");
  if (!has("metadata") || !types.every((type) => ["tiff", "jpeg", "data", "metadata", "header"].includes(type))) return null;
  if (!files.some(({ name }) => IMAGE.test(name))) return { isComplete: false, text: `${files[0].name} has no image. Add its SPECTRAL_IMAGE file.` };
  if (files.length > MAX_FILES) return { isComplete: false, isInvalid: true, text: `These are ${files.length} files: choose those of one product.` };
  return ready("A product");
}
