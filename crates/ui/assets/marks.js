// The places of marks below a timeline: those that would cover each other are one.

/** @import { Recording } from '../types/contract.js' */

/** @typedef {Recording['steps'][number]} Step */

/**
 * A mark of one step or of several that follow each other.
 *
 * @typedef {object} Mark
 * @property {Step[]} steps
 * @property {string} label
 * @property {number} left in pixels
 * @property {number} right in pixels
 */

/** The least width of a mark, which fingers hit, and the widths of a character and of the rest. */
const WIDTH = { least: 24, character: 8, padding: 12 };
/** The space between two marks, in pixels. */
const GAP = 2;

/**
 * @param {Step[]} steps in the order of time
 * @param {number} duration in seconds
 * @param {number} width of the timeline, in pixels
 * @returns {Mark[]}
 */
export function placeMarks(steps, duration, width) {
  /** @type {Mark[]} */
  const marks = [];
  for (const step of steps) {
    let mark = place([step], duration, width);
    for (let before = marks.at(-1); before; before = marks.at(-1)) {
      if (mark.left >= before.right + GAP) break;
      marks.pop();
      mark = place([...before.steps, ...mark.steps], duration, width);
    }
    marks.push(mark);
  }
  return marks;
}

/**
 * @param {Step[]} steps
 * @param {number} duration
 * @param {number} width
 * @returns {Mark}
 */
function place(steps, duration, width) {
  const [first, last] = [steps[0]?.number ?? 0, steps.at(-1)?.number ?? 0];
  const label = first === last ? `${first}` : `${first}–${last}`;
  const wide = Math.max(WIDTH.least, label.length * WIDTH.character + WIDTH.padding);
  const at = duration > 0 ? ((steps[0]?.from ?? 0) / duration) * width : 0;
  const left = Math.max(0, Math.min(at, width - wide));
  return { steps, label, left, right: left + wide };
}
