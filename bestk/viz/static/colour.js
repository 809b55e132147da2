"use strict";
/* Colours: scales for probability and time, in light and dark, and the ink that reads on them. */
(() => {
  const bestk = (window.bestk = window.bestk || {});

  const SCALES = {
    light: {
      probability: ["#dbe8f3", "#b0d0e8", "#6aaed6", "#2a78b8", "#0b3f7a"],
      time: ["#fde9a2", "#fbb65f", "#e3646c", "#96408f", "#3c2a78"],
    },
    dark: {
      probability: ["#1c2b3d", "#1e4a75", "#2a78b8", "#6db4e0", "#d3ebfb"],
      time: ["#4a3a8c", "#98479a", "#e3646c", "#fbb65f", "#fff0b8"],
    },
  };
  const SHADES = 32;

  function channels(hex) {
    return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  }

  function mix(stops, share) {
    const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    const [from, to] = [channels(stops[low]), channels(stops[low + 1])];
    return from.map((value, i) => Math.round(value + (to[i] - value) * (at - low)));
  }

  function luminance(rgb) {
    const [r, g, b] = rgb.map((value) => {
      const part = value / 255;
      return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }

  /** The shades of a scale, from 0 to 1, each with the ink to write on it. */
  function shades(theme, name) {
    const stops = SCALES[theme][name];
    return Array.from({ length: SHADES }, (_, i) => {
      const rgb = mix(stops, i / (SHADES - 1));
      const ink = luminance(rgb) > 0.3 ? "#10202e" : "#ffffff";
      // Outlines of pale shades must stand out from the ground.
      const line = rgb.map((value) => Math.round(theme === "dark" ? value + (255 - value) * 0.3 : value * 0.8));
      return { fill: `rgb(${rgb.join(",")})`, line: `rgb(${line.join(",")})`, ink };
    });
  }

  bestk.shades = shades;
  bestk.shadeIndex = (share) =>
    Math.min(SHADES - 1, Math.max(0, Math.round(share * (SHADES - 1))));
  bestk.gradient = (theme, name) => `linear-gradient(to right, ${SCALES[theme][name].join(", ")})`;
})();
