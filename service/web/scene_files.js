// Checks the chosen files by their first bytes, and names the missing file of an ENVI pair.

const ENVI_EXTENSIONS = ["img", "bsq", "bil", "bip", "dat", "raw", ""];

/** A file's type: "tiff", "header", "data" (of ENVI, by its extension) or "other". */
async function typeOf(file) {
  const start = new Uint8Array(await file.slice(0, 4).arrayBuffer());
  const magic = String.fromCharCode(...start);
  if (["II*\0", "MM\0*", "II+\0", "MM\0+"].includes(magic)) return "tiff";
  if (magic === "ENVI") return "header";
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
    ? `${wrong.name} is neither a GeoTIFF nor an ENVI file. Remove it and choose a scene.`
    : "A scene is one GeoTIFF, or one ENVI data file and its header. Remove the other files.";
  return { isComplete: false, isInvalid: true, text };
}
