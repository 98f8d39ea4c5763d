// The basemap below the scene, if the operator has set one: the only images from another host.

import { make } from "./dom.js";
import { addControl } from "./map_tools.js";

const L = window.L;
const MAX_TILE_ZOOM = 19; // usual for tiles of the whole Earth; beyond, they are enlarged
const setting = document.querySelector('meta[name="basemap"]');
const url = setting?.content ?? "";

/** Whether the operator has set a basemap. */
export const hasBasemap = Boolean(url);

/** What the operator says about its source. */
export const basemapAttribution = setting?.dataset.attribution ?? "";

/** Add the basemap to a Leaflet map in Web Mercator, below everything else; returns a function that shows or hides it. */
export function addBasemap(map) {
  map.createPane("basemap").style.zIndex = 100;
  const layer = L.tileLayer(url, { pane: "basemap", maxNativeZoom: MAX_TILE_ZOOM, maxZoom: 30, minZoom: 0, referrerPolicy: "origin" });
  const source = make("div", { class: "basemap-source" }, basemapAttribution);
  if (basemapAttribution) addControl(map, "bottomright", source);
  const show = (isShown) => {
    if (isShown) layer.addTo(map);
    else layer.remove();
    source.hidden = !isShown;
  };
  show(true);
  return show;
}
