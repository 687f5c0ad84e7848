// The network of a node as a picture, in the places that crates/map has found for its boxes.

/** @import { TopologyBox, TopologyLayout } from '../types/contract.js' */

import { h } from './dom.js';

const SVG = 'http://www.w3.org/2000/svg';

/** The size of a character of the picture's font, in pixels, as crates/map has it. */
const COLUMN = 7.3;
const ROW = 17;
/** The distance from the upper edge of a row to the baseline of its text. */
const BASELINE = 9.5;
/** The gap between boxes that touch. */
const GAP = 6;
/** The room around the picture, for the borders of boxes. */
const MARGIN = 1;

/**
 * Creates an element of a picture.
 *
 * @template {keyof SVGElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, string | number>} attributes
 * @param {...(Node | string)} children
 * @returns {SVGElementTagNameMap[T]}
 */
function s(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/**
 * The picture, which scrolls in its place. What it shows is in the tables of the view, too.
 *
 * @param {string} node the name of the node
 * @param {TopologyLayout} layout
 */
export function topologyPicture(node, { boxes, lines, width, height }) {
  const [wide, high] = [COLUMN * width + 2 * MARGIN, ROW * height - GAP + 2 * MARGIN];
  const count = boxes.filter(({ role }) => role === 'pod').length;
  const picture = s(
    'svg',
    {
      class: 'topology',
      role: 'img',
      'aria-label': `Network of node ${node} with ${count} pods`,
      viewBox: `${-MARGIN} ${-MARGIN} ${wide} ${high}`,
      width: wide,
      height: high,
    },
    ...lines.map(wire),
    ...boxes.map(box),
  );
  const name = { role: 'region', 'aria-label': `Picture of the network of ${node}`, tabindex: '0' };
  return h('div', { class: 'scroll picture', ...name }, picture);
}

/**
 * A line with one bend in the middle.
 *
 * @param {TopologyLayout['lines'][number]} line
 */
function wire({ from, to }) {
  const [x, endX] = [COLUMN * from[0], COLUMN * to[0]];
  const [y, endY] = [ROW * (from[1] + 0.5), ROW * (to[1] + 0.5)];
  return s('path', { class: 'wire', d: `M${x} ${y}H${(x + endX) / 2}V${endY}H${endX}` });
}

/** @param {TopologyBox} box */
function box({ role, rect, lines }) {
  const [x, y] = [COLUMN * rect.x, ROW * rect.y];
  const [width, height] = [COLUMN * rect.width, ROW * rect.height - GAP];
  const texts = lines.map((line, index) =>
    s(
      'text',
      { class: index === 0 ? 'head' : '', x: x + 2 * COLUMN, y: y + ROW * (index + 1) + BASELINE },
      line,
    ),
  );
  return s('g', { class: role }, s('rect', { x, y, width, height, rx: 4 }), ...texts);
}
