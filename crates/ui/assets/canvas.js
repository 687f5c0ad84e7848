// Draws a map on a canvas, with the signs of crates/map's pictures.

/** @import { Cell, StateName } from '../types/contract.js' */
/** @import { Mark, Scene } from './scene.js' */

import { STATES, background, letterOf } from './states.js';
import { blockState } from './words.js';

/** The least size of a cell that has its letter in it. */
const LETTER_SIZE = 13;
/** The least size of a cell that has the end of its address, too. */
const ADDRESS_SIZE = 28;
/** The least size of a cell whose letter and address are written larger. */
const LARGE_SIZE = 64;
const LABEL_FONT = '10px ui-monospace, "DejaVu Sans Mono", monospace';
const LABEL_CHARACTER = 6.1;
/** The eighths of a full cell, and the least that can be seen. */
const FULL = 8;
const LEAST = 2;

/**
 * @typedef {object} Colours
 * @property {string} page
 * @property {string} ink
 * @property {string} focus
 * @property {string} error
 * @property {string} warning
 * @property {Map<StateName, {fill: string, on: string}>} states
 */

/**
 * The colours of the style sheet, for the present theme.
 *
 * @param {Element} element
 * @returns {Colours}
 */
export function coloursAt(element) {
  const style = getComputedStyle(element);
  const value = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  return {
    page: value('--page'),
    ink: value('--ink'),
    focus: value('--focus'),
    error: value('--mark'),
    warning: value('--warning'),
    states: new Map(
      STATES.map(({ name }) => [name, { fill: value(`--${name}`), on: value(`--on-${name}`) }]),
    ),
  };
}

/** Shapes in a cell of 1 by 1, as lines. @type {Partial<Record<StateName, number[][]>>} */
const PATTERNS = {
  duplicate: [
    [0, 0, 1, 1],
    [1, 0, 0, 1],
  ],
  outside: [[0, 1, 1, 0]],
  orphaned: [[0.5, 0.2, 0.8, 0.5, 0.5, 0.8, 0.2, 0.5, 0.5, 0.2]],
  draining: [
    [0, 0.35, 1, 0.35],
    [0, 0.7, 1, 0.7],
  ],
  service: [[0.5, 0.4, 0.5, 0.6]],
  node: [[0.35, 0.35, 0.65, 0.35, 0.65, 0.65, 0.35, 0.65, 0.35, 0.35]],
  withheld: [
    [0.3, 0, 0.3, 1],
    [0.7, 0, 0.7, 1],
  ],
  reserved: [[0, 0, 1, 1]],
  gateway: [
    [0.5, 0.2, 0.5, 0.8],
    [0.2, 0.5, 0.8, 0.5],
  ],
};

/**
 * Dashes of the outlines of blocks that are not simply a node's.
 *
 * @type {Record<string, number[]>}
 */
const DASHES = {
  foreign: [5, 2],
  unowned: [5, 2],
  draining: [2, 2],
  held: [2, 2],
  quarantined: [2, 2],
};

/**
 * @typedef {object} Drawing
 * @property {CanvasRenderingContext2D} context in CSS pixels
 * @property {Scene} scene
 * @property {number} cell the size of a cell
 * @property {Colours} colours
 */

/**
 * @param {HTMLCanvasElement} canvas
 * @param {Scene} scene
 * @param {number} cell the size of a cell in CSS pixels
 * @param {object} over what is drawn over the map
 * @param {Mark[]} over.marks the worst first
 * @param {Cell | null} over.cursor
 */
export function draw(canvas, scene, cell, { marks, cursor }) {
  const context = canvas.getContext('2d');
  if (!context) return;
  const { width, height } = scene.view;
  const ratio = window.devicePixelRatio || 1;
  const [pixelsWide, pixelsHigh] = [width * cell * ratio, height * cell * ratio].map(Math.round);
  if (canvas.width !== pixelsWide) canvas.width = pixelsWide ?? 0;
  if (canvas.height !== pixelsHigh) canvas.height = pixelsHigh ?? 0;
  canvas.style.width = `${width * cell}px`;
  canvas.style.height = `${height * cell}px`;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  /** @type {Drawing} */
  const drawing = { context, scene, cell, colours: coloursAt(canvas) };
  fills(drawing);
  if (cell < LETTER_SIZE) patterns(drawing);
  outlines(drawing);
  for (const one of marks.toReversed()) mark(drawing, one);
  if (cell >= LETTER_SIZE) letters(drawing);
  // Labels would cover the signs of large cells; the list beside the map has the blocks.
  else labels(drawing);
  if (cursor) ring(drawing, cursor);
}

/**
 * The level to which a cell is filled: its part in use.
 *
 * @param {Scene} scene
 * @param {Cell} cell
 */
function level(scene, cell) {
  const hasLevel = ['pod', 'service', 'node'].includes(cell.dominant);
  if (scene.view.layout !== 'curve' || !hasLevel) return FULL;
  return Math.min(FULL, Math.max(LEAST, cell.fill));
}

/** @param {Drawing} drawing */
function fills({ context, scene, cell: size, colours }) {
  const { width, height } = scene.view;
  context.fillStyle = colours.page;
  context.fillRect(0, 0, width * size, height * size);
  // Large cells have a gap between them.
  const gap = size >= LETTER_SIZE ? 1 : 0;
  for (const cell of scene.cells) {
    const eighths = level(scene, cell);
    const [x, y, side] = [cell.x * size, cell.y * size, size - gap];
    if (eighths < FULL) {
      context.fillStyle = colours.states.get(background(cell.counts))?.fill ?? colours.page;
      context.fillRect(x, y, side, side);
    }
    const filled = (side * eighths) / FULL;
    context.fillStyle = colours.states.get(cell.dominant)?.fill ?? colours.page;
    context.fillRect(x, y + side - filled, side, filled);
  }
}

/** @param {Drawing} drawing */
function patterns({ context, scene, cell: size, colours }) {
  context.lineWidth = Math.max(0.75, size / 10);
  for (const cell of scene.cells) {
    const shapes = PATTERNS[cell.dominant];
    if (!shapes) continue;
    context.strokeStyle = colours.states.get(cell.dominant)?.on ?? colours.ink;
    context.beginPath();
    for (const shape of shapes) {
      for (let index = 0; index < shape.length; index += 2) {
        const x = (cell.x + (shape[index] ?? 0)) * size;
        const y = (cell.y + (shape[index + 1] ?? 0)) * size;
        if (index === 0) context.moveTo(x, y);
        else context.lineTo(x, y);
      }
    }
    context.stroke();
  }
}

/** @param {Drawing} drawing */
function letters({ context, scene, cell: size, colours }) {
  const hasAddress = size >= ADDRESS_SIZE;
  const isLarge = size >= LARGE_SIZE;
  const letterSize = Math.min(isLarge ? 24 : 14, Math.round(size * 0.6));
  const letterFont = `${letterSize}px ui-monospace, monospace`;
  const addressFont = isLarge ? LABEL_FONT.replace('10px', '15px') : LABEL_FONT;
  context.textAlign = 'center';
  context.textBaseline = 'middle';
  for (const cell of scene.cells) {
    const [x, y] = [(cell.x + 0.5) * size, (cell.y + 0.5) * size];
    // The letter is in the middle, which a low level leaves to the background.
    const isLow = level(scene, cell) <= FULL / 2;
    const under = isLow ? background(cell.counts) : cell.dominant;
    context.fillStyle = colours.states.get(under)?.on ?? colours.ink;
    const end = hasAddress && /^[\d.]+(\.\d+)\/32$/.exec(cell.prefix)?.[1];
    if (end) {
      context.font = addressFont;
      context.fillText(end, x, y + size * 0.22);
    }
    if (cell.dominant === 'free' || cell.dominant === 'unassigned') continue;
    context.font = letterFont;
    context.fillText(letterOf(cell.dominant), x, end ? y - size * 0.16 : y);
  }
}

/** @param {Drawing} drawing */
function outlines({ context, scene, cell: size, colours }) {
  context.strokeStyle = colours.ink;
  context.lineWidth = 1;
  for (const { rect, state } of scene.view.outlines) {
    context.setLineDash(DASHES[state] ?? []);
    const [width, height] = [rect.width * size - 1, rect.height * size - 1];
    context.strokeRect(rect.x * size + 0.5, rect.y * size + 0.5, width, height);
  }
  context.setLineDash([]);
}

/**
 * Writes the node and the prefix into blocks that are large enough.
 *
 * @param {Drawing} drawing
 */
function labels({ context, scene, cell: size, colours }) {
  context.font = LABEL_FONT;
  context.textAlign = 'center';
  context.textBaseline = 'middle';
  context.lineJoin = 'round';
  for (const { rect, cidr, node, otherNodes = [], state } of scene.view.outlines) {
    const [width, height] = [rect.width * size, rect.height * size];
    const nodes = [node ?? blockState(state), ...otherNodes];
    if (height < 14) continue;
    const fits = (/** @type {string} */ text) => text.length * LABEL_CHARACTER + 8 <= width;
    const most = height < 30 ? 1 : 2;
    // Of a block that several nodes have, as many names as there is room for.
    const name = [nodes.join(', '), `${nodes[0]} +${otherNodes.length}`].find(fits);
    const lines = [otherNodes.length > 0 ? name : nodes[0], cidr]
      .flatMap((line) => (line && fits(line) ? [line] : []))
      .slice(0, most);
    const [x, middle] = [rect.x * size + width / 2, rect.y * size + height / 2];
    lines.forEach((line, index) => {
      const y = middle + 13 * (index - (lines.length - 1) / 2);
      context.strokeStyle = colours.page;
      context.lineWidth = 3;
      context.strokeText(line, x, y);
      context.fillStyle = colours.ink;
      context.fillText(line, x, y);
    });
  }
}

/**
 * Marks the place of a finding by a border within it, so that no mark covers a neighbour.
 *
 * @param {Drawing} drawing
 * @param {Mark} mark
 */
function mark({ context, cell: size, colours }, { finding, rect }) {
  const colour = finding.severity === 'error' ? colours.error : colours.warning;
  const isCell = rect.width * rect.height === 1;
  // A small cell has no room for a line on the inner side, too.
  const outside = isCell && size < LETTER_SIZE;
  for (const [stroke, line, inset] of /** @type {const} */ ([
    [colours.page, outside ? 2 : 4, outside ? 1 : 2],
    [colour, 2, 2],
  ])) {
    context.strokeStyle = stroke;
    context.lineWidth = line;
    const [width, height] = [rect.width * size, rect.height * size];
    const [left, top] = [rect.x * size + inset, rect.y * size + inset];
    context.strokeRect(left, top, width - 2 * inset, height - 2 * inset);
  }
}

/**
 * @param {Drawing} drawing
 * @param {Cell} cell
 */
function ring({ context, cell: size, colours }, cell) {
  for (const [colour, width] of /** @type {const} */ ([
    [colours.page, 5],
    [colours.focus, 2.5],
  ])) {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.strokeRect(cell.x * size - 1, cell.y * size - 1, size + 2, size + 2);
  }
}
