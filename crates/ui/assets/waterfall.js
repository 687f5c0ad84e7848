// A trace as a waterfall, with a table behind it.

/** @import { Fold, Gap, Span, Trace } from '../types/contract.js' */

import { ago } from './ages.js';
import { button, h, isChanged, replace } from './dom.js';
import { DataTable } from './table.js';
import { duration, instant, number } from './words.js';

/** The widest that a bar is moved to the right, in percent, so that the shortest is seen. */
const LAST = 99.5;
const TICKS = 4;

/** @typedef {Span & {index: number, depth: number}} PlacedSpan */

export class Waterfall {
  element;
  #picture = h('ol', { class: 'waterfall' });
  #axis = h('div', { class: 'axis', 'aria-hidden': 'true' });
  #began = h('span', { class: 'quiet' });
  #behind = h('div', { hidden: true });
  /** The first rows of the folds that are open. @type {Set<number>} */ #opened = new Set();
  #table = new DataTable(
    /** @type {import('./table.js').TableOptions<PlacedSpan>} */ ({
      caption: 'Spans of the trace',
      columns: [
        {
          title: 'Start',
          value: ({ start }) => start,
          show: ({ start }) => duration(start),
          isNumeric: true,
        },
        {
          title: 'Takes',
          value: ({ seconds }) => seconds,
          show: ({ seconds }) => duration(seconds),
          isNumeric: true,
        },
        { title: 'Process', value: ({ process }) => process },
        { title: 'Span', value: ({ name }) => name },
        {
          title: 'Attributes',
          value: ({ attributes }) => attributesText(attributes),
          isCode: true,
        },
        { title: 'Error', value: ({ error }) => error ?? '' },
      ],
      key: ({ index }) => String(index),
      empty: 'The trace has no spans yet.',
    }),
  );

  constructor() {
    const toggle = button(
      'Show as table',
      () => {
        this.#behind.hidden = !this.#behind.hidden;
        toggle.setAttribute('aria-expanded', String(!this.#behind.hidden));
      },
      { 'aria-expanded': 'false' },
    );
    this.#behind.append(this.#table.element);
    this.element = h(
      'div',
      {},
      h('div', { class: 'bar' }, this.#began, toggle),
      h('div', { class: 'waterfall-box' }, this.#axis, this.#picture),
      this.#behind,
    );
  }

  /**
   * @param {Trace} trace
   * @param {string} lacked what its pod waits for; nothing if it has its address
   */
  show({ spans, folds, gaps, droppedSpans, began }, lacked) {
    if (!isChanged(this.#picture, [spans, lacked])) return;
    const placed = withDepths(spans);
    const end = Math.max(1e-6, ...spans.map(({ start, seconds }) => start + seconds));
    const start = `began ${instant(began)}`;
    const times = lacked
      ? [`${start}; without ${lacked} for `, ago(began)]
      : [`${start}, takes ${duration(end)}`];
    const dropped = droppedSpans > 0 ? `; steps that are not kept: ${number(droppedSpans)}` : '';
    replace(this.#began, ...times, dropped);
    replace(this.#axis, ...Array.from({ length: TICKS + 1 }, (_, tick) => tickAt(tick, end)));
    this.#draw(placed, folds, gaps, end);
    this.#table.update(placed);
  }

  /**
   * @param {PlacedSpan[]} spans
   * @param {Fold[]} folds
   * @param {Gap[]} gaps
   * @param {number} end in seconds
   */
  #draw(spans, folds, gaps, end) {
    const focused = this.#picture.querySelector('button:focus')?.getAttribute('data-fold');
    const closed = folds.filter(({ from }) => !this.#opened.has(from));
    const isHidden = (/** @type {number} */ place, /** @type {Fold | null} */ own = null) =>
      closed.some((fold) => fold !== own && fold.from <= place && place < fold.until);
    const toggle = (/** @type {Fold} */ fold) => {
      if (!this.#opened.delete(fold.from)) this.#opened.add(fold.from);
      this.#draw(spans, folds, gaps, end);
    };
    const rows = spans.flatMap((span, place) => [
      ...gaps.filter(({ before }) => before === place && !isHidden(place)).map(gapRow),
      ...folds
        .filter((fold) => fold.from === place && !isHidden(place, fold))
        .map((fold) => foldRow(fold, this.#opened.has(fold.from), () => toggle(fold))),
      ...(isHidden(place) ? [] : [bar(span, end)]),
    ]);
    replace(this.#picture, ...rows);
    if (!focused) return;
    const same = this.#picture.querySelector(`button[data-fold="${focused}"]`);
    if (same instanceof HTMLElement) same.focus({ preventScroll: true });
  }
}

/**
 * @param {Fold} fold
 * @param {boolean} isOpen
 * @param {() => void} toggle
 */
function foldRow({ from, text }, isOpen, toggle) {
  const attributes = { class: 'fold', 'aria-expanded': String(isOpen), 'data-fold': from };
  return h('li', { class: 'between' }, button(text, toggle, attributes));
}

/** @param {Gap} gap */
function gapRow({ seconds, text }) {
  return h('li', { class: 'between quiet' }, `${duration(seconds)} ${text}`);
}

/**
 * @param {Span[]} spans each before its parts
 * @returns {PlacedSpan[]}
 */
function withDepths(spans) {
  /** @type {number[]} */
  const depths = [];
  const depthOf = (/** @type {Span} */ { parent }, /** @type {number} */ index) =>
    parent === null || parent >= index ? 0 : (depths[parent] ?? 0) + 1;
  return spans.map((span, index) => {
    const depth = depthOf(span, index);
    depths.push(depth);
    return { ...span, index, depth };
  });
}

/**
 * @param {number} tick
 * @param {number} end
 */
function tickAt(tick, end) {
  const label = h('span', {}, tick === 0 ? '0' : duration((end * tick) / TICKS));
  label.style.left = `${(100 * tick) / TICKS}%`;
  return label;
}

/**
 * @param {PlacedSpan} span
 * @param {number} end in seconds
 */
function bar({ name, service, process, start, seconds, depth, error, attributes }, end) {
  const left = Math.min(LAST, (100 * start) / end);
  const fill = h('span', { class: error ? 'failed' : service.replace(/[^a-z]+/gi, '-') });
  fill.style.left = `${left}%`;
  fill.style.width = `${Math.min((100 * seconds) / end, 100 - left)}%`;
  const label = h('span', { class: 'span-name' }, h('small', {}, process), ` ${name}`);
  label.style.paddingLeft = `${Math.min(depth, 8) * 10}px`;
  const more = attributesText(attributes);
  return h(
    'li',
    { title: more || null },
    label,
    h('span', { class: 'track', 'aria-hidden': 'true' }, fill),
    h('span', { class: 'takes' }, duration(seconds)),
    error && h('span', { class: 'finding error reason' }, error),
  );
}

/** @param {Record<string, unknown>} attributes */
function attributesText(attributes) {
  const each = Object.entries(attributes).map(([name, value]) => {
    return `${name}=${typeof value === 'string' ? value : JSON.stringify(value)}`;
  });
  return each.join(' ');
}
