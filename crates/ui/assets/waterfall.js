// A trace as a waterfall, with a table behind it.

/** @import { Fold, Gap, Span, Trace } from '../types/contract.js' */

import { ago } from './ages.js';
import { button, h, isChanged, isSmallScreen, replace, setText } from './dom.js';
import { DataTable } from './table.js';
import { duration, instant, number } from './words.js';

/** The widest that a bar is moved to the right, in percent, so that the shortest is seen. */
const LAST = 99.5;
const TICKS = 4;

/** Longer traces are shown without the parts of their steps on a small screen. */
const SHORT = { spans: 12, depth: 1 };

/** @typedef {Span & {index: number, depth: number, cause: number}} PlacedSpan */

export class Waterfall {
  element;
  #picture = h('ol', { class: 'waterfall' });
  #axis = h('div', { class: 'axis', 'aria-hidden': 'true' });
  #began = h('span', { class: 'quiet' });
  #behind = h('div', { hidden: true });
  /** The first rows of the folds that are open. @type {Set<number>} */ #opened = new Set();
  /** True while steps are shown without their parts. */ #isShort = isSmallScreen();
  #parts = button('', () => {
    this.#isShort = !this.#isShort;
    this.#redraw();
  });
  #redraw = () => {};
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
      h('div', { class: 'bar' }, this.#began, h('span', { class: 'buttons' }, this.#parts, toggle)),
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
    const placed = place(spans);
    const end = Math.max(1e-6, ...spans.map(({ start, seconds }) => start + seconds));
    const start = `began ${instant(began)}`;
    const times = lacked
      ? [`${start}; without ${lacked} for `, ago(began)]
      : [`${start}, takes ${duration(end)}`];
    const dropped = droppedSpans > 0 ? `; steps that are not kept: ${number(droppedSpans)}` : '';
    replace(this.#began, ...times, dropped);
    replace(this.#axis, ...Array.from({ length: TICKS + 1 }, (_, tick) => tickAt(tick, end)));
    this.#redraw = () => this.#draw(placed, folds, gaps, end);
    this.#redraw();
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
    const isPart = (/** @type {number} */ place) => (spans[place]?.depth ?? 0) > SHORT.depth;
    const isLong = spans.length > SHORT.spans && spans.some((_, place) => isPart(place));
    const isShort = isLong && this.#isShort;
    const isHidden = (/** @type {number} */ place, /** @type {Fold | null} */ own = null) =>
      (isShort && isPart(place)) ||
      closed.some((fold) => fold !== own && fold.from <= place && place < fold.until);
    const toggle = (/** @type {Fold} */ fold) => {
      if (!this.#opened.delete(fold.from)) this.#opened.add(fold.from);
      this.#redraw();
    };
    this.#parts.hidden = !isLong;
    setText(this.#parts, isShort ? 'Show more steps' : 'Show fewer steps');
    /** @type {Set<string>} */
    const given = new Set();
    const reasonOf = (/** @type {PlacedSpan} */ { index, cause }) => {
      const inner = isShort ? causeIn(spans, index, isPart) : cause;
      const reason = inner === index || (isShort && isPart(inner)) ? spans[inner]?.error : null;
      if (isShort && reason && given.has(reason)) return 'the same error as above';
      if (reason) given.add(reason);
      return reason;
    };
    const rows = spans.flatMap((span, place) => [
      ...gaps.filter(({ before }) => before === place && !isHidden(place)).map(gapRow),
      ...folds
        .filter((fold) => fold.from === place && !isHidden(place, fold))
        .map((fold) => foldRow(fold, this.#opened.has(fold.from), () => toggle(fold))),
      ...(isHidden(place) ? [] : [bar(span, reasonOf(span), end)]),
    ]);
    replace(this.#picture, ...rows);
    if (!focused) return;
    const same = this.#picture.querySelector(`button[data-fold="${focused}"]`);
    if (same instanceof HTMLElement) same.focus({ preventScroll: true });
  }
}

/**
 * The span whose error a step has, which may be one of its hidden parts.
 *
 * @param {PlacedSpan[]} spans
 * @param {number} place of the step
 * @param {(place: number) => boolean} isHidden
 */
function causeIn(spans, place, isHidden) {
  const own = spans[place];
  if (own?.error) return own.cause;
  for (let part = place + 1; part < spans.length && isHidden(part); part += 1) {
    const found = spans[part];
    if (found?.error) return found.cause;
  }
  return place;
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
 * Finds the depth of each span, and the part of it whose error it only repeats with more words.
 *
 * @param {Span[]} spans each before its parts
 * @returns {PlacedSpan[]}
 */
function place(spans) {
  /** @type {PlacedSpan[]} */
  const placed = [];
  spans.forEach((span, index) => {
    const { parent } = span;
    const outer = parent === null ? undefined : placed[parent];
    placed.push({ ...span, index, depth: outer ? outer.depth + 1 : 0, cause: index });
  });
  // From the last one, so that the parts of a part are known.
  for (const { index, parent, error, cause } of placed.toReversed()) {
    const outer = parent === null ? undefined : placed[parent];
    if (outer && outer.index < index && error && outer.error?.includes(error)) outer.cause = cause;
  }
  return placed;
}

/**
 * @param {number} tick
 * @param {number} end
 */
function tickAt(tick, end) {
  const at = (end * tick) / TICKS;
  // Ticks of one axis have one unit.
  const text = end < 120 ? duration(at) : `${(at / 60).toPrecision(2)} min`;
  const label = h('span', {}, tick === 0 ? '0' : text);
  label.style.left = `${(100 * tick) / TICKS}%`;
  return label;
}

/**
 * @param {PlacedSpan} span
 * @param {string | null | undefined} reason of its failure, unless one of its parts has it
 * @param {number} end in seconds
 */
function bar({ name, service, process, start, seconds, depth, error, attributes }, reason, end) {
  const left = Math.min(LAST, (100 * start) / end);
  const fill = h('span', { class: error || reason ? 'failed' : service.replace(/[^a-z]+/gi, '-') });
  fill.style.left = `${left}%`;
  fill.style.width = `${Math.min((100 * seconds) / end, 100 - left)}%`;
  const failed = !!error && !reason && h('span', { class: 'for-readers' }, ' failed');
  const label = h('span', { class: 'span-name' }, h('small', {}, process), ` ${name}`, failed);
  label.style.paddingLeft = `${Math.min(depth, 8) * 10}px`;
  const more = [attributesText(attributes), error].filter(Boolean).join('\n');
  return h(
    'li',
    { title: more || null },
    label,
    h('span', { class: 'track', 'aria-hidden': 'true' }, fill),
    h('span', { class: 'takes' }, duration(seconds)),
    reason && h('span', { class: 'finding error reason' }, reason),
  );
}

/** @param {Record<string, unknown>} attributes */
function attributesText(attributes) {
  const each = Object.entries(attributes).map(([name, value]) => {
    return `${name}=${typeof value === 'string' ? value : JSON.stringify(value)}`;
  });
  return each.join(' ');
}
