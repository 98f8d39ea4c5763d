// What chosen files are, by their first bytes, and which half of an ENVI pair is missing.

const ENVI_ENDINGS = ["img", "bsq", "bil", "bip", "dat", "raw", ""];

/** What a file is: "tiff", "header", "data" (of ENVI, by its name) or "other". */
async function kindOf(file) {
  const start = new Uint8Array(await file.slice(0, 4).arrayBuffer());
  const letters = String.fromCharCode(...start);
  if (["II*\0", "MM\0*", "II+\0", "MM\0+"].includes(letters)) return "tiff";
  if (letters === "ENVI") return "header";
  return ENVI_ENDINGS.includes(endingOf(file.name)) ? "data" : "other";
}

const endingOf = (name) => (name.includes(".") ? name.split(".").pop().toLowerCase() : "");
const stemOf = (name) => (name.includes(".") ? name.slice(0, name.lastIndexOf(".")) : name);

/** Chosen files, judged: whether they are a scene, and what to say. */
export async function judge(files) {
  if (!files.length) return { isWhole: false, text: "" };
  let kinds;
  try {
    kinds = await Promise.all(files.map(kindOf));
  } catch {
    return { isWhole: false, isWrong: true, text: "A chosen file cannot be read: it was moved or changed. Choose it again." };
  }
  const all = (kind) => files.filter((_, place) => kinds[place] === kind);
  const [tiffs, headers, data, others] = ["tiff", "header", "data", "other"].map(all);
  if (files.length === 1 && tiffs.length) return { isWhole: true, text: "A GeoTIFF, ready to be sent." };
  if (files.length === 1 && headers.length) {
    const stem = stemOf(headers[0].name);
    const name = ENVI_ENDINGS.includes(endingOf(stem)) && stem.includes(".") ? stem : `${stem}.img`;
    return { isWhole: false, text: `${headers[0].name} is an ENVI header. Now add its data file, ${name} or another ending.` };
  }
  if (files.length === 1 && data.length) {
    return { isWhole: false, text: `${data[0].name} is ENVI data. Now add its header, ${stemOf(data[0].name)}.hdr.` };
  }
  if (files.length === 2 && headers.length === 1 && data.length + others.length === 1) {
    return { isWhole: true, text: "An ENVI scene, data and header, ready to be sent." };
  }
  const wrong = others[0] ?? files[1];
  const text = others.length
    ? `${wrong.name} is neither a GeoTIFF nor a part of an ENVI scene. Remove it and choose one of those.`
    : "A scene is one GeoTIFF, or one ENVI data file and its header. Remove what does not belong to it.";
  return { isWhole: false, isWrong: true, text };
}
