// The slider through a recording.

/** @import { Recording } from '../types/contract.js' */

import { button, h, replace, setText } from './dom.js';
import { placeMarks } from './marks.js';
import { counted } from './words.js';

/** @typedef {Recording['steps'][number]} Step */

/** Steps of a second of playing. */
const FRAMES = 10;
/** The moments of a second; changes that are nearer to each other are one. */
const PER_SECOND = 1000;
const PRECISION = 1 / PER_SECOND;

/** @param {number} seconds */
function shown(seconds) {
  return `${seconds.toFixed(2)} s`;
}

/**
 * The moment that a text of an address names.
 *
 * @param {string | null} text
 * @param {number} duration
 * @returns {number | null} null if it is not a moment
 */
export function momentOf(text, duration) {
  if (text === null || !/^\d+(\.\d*)?$/.test(text)) return null;
  return Math.min(Number(text), duration);
}

/**
 * A moment as addresses have it. It is not before `at`, so that what happens then has happened.
 *
 * @param {number} at
 */
export function momentText(at) {
  return String(Math.ceil(at * PER_SECOND - 1e-6) / PER_SECOND);
}

/**
 * @param {Step} step
 */
function titleOf({ number, title }) {
  return number === 0 ? 'Before the first step' : `${number}. ${title}`;
}

/**
 * The end of a step in words; the part before the first step has none.
 *
 * @param {Step} step
 */
function outcomeOf({ number, outcome }) {
  if (number === 0) return '';
  return outcome === null ? ' (did not end)' : ` (${outcome})`;
}

/** @param {Step} step */
function isFailed({ number, outcome }) {
  return number > 0 && outcome !== 'ok';
}

/**
 * The times at which there are errors, as bars below the slider and in words.
 *
 * @param {Recording} recording
 */
function faultsOf({ faults, duration }) {
  if (faults === null) {
    const why = 'the recording has too many changes to audit each.';
    return h('p', { class: 'quiet' }, `The times of errors are unknown: ${why}`);
  }
  const bars = faults.map(([from, to]) => {
    const bar = h('span', { title: `errors from ${shown(from)} to ${shown(to)}` });
    bar.style.left = `${(100 * from) / duration}%`;
    bar.style.width = `${(100 * (to - from)) / duration}%`;
    return bar;
  });
  const words = faults.map(([from, to]) => `from ${shown(from)} to ${shown(to)}`);
  const text = faults.length > 0 ? `Errors ${words.join(', ')}.` : 'No errors.';
  return h('div', { class: 'faults' }, h('span', { class: 'for-readers' }, text), ...bars);
}

export class Slider {
  element;
  #recording;
  #onMoment;
  #range;
  #marks = h('div', { class: 'marks' });
  #time = h('output', { for: 'moment' });
  #step = h('span', { class: 'step', role: 'status' });
  #play = button('Play', () => this.#toggle());
  /** @type {number | undefined} */ #timer;
  #at;

  /**
   * @param {Recording} recording
   * @param {number} at
   * @param {AbortSignal} end
   * @param {(at: number) => void} onMoment
   */
  constructor(recording, at, end, onMoment) {
    this.#recording = recording;
    this.#onMoment = onMoment;
    this.#at = at;
    const { duration, name } = recording;
    this.#range = h('input', {
      id: 'moment',
      type: 'range',
      min: '0',
      max: duration,
      step: 'any',
      'aria-label': `Moment of the recording ${name}`,
    });
    this.#range.addEventListener('input', () => this.#move(Number(this.#range.value)));
    this.#range.addEventListener('keydown', (event) => this.#key(event));
    this.element = h(
      'section',
      { class: 'recording', 'aria-label': 'Recording' },
      h(
        'div',
        { class: 'controls' },
        this.#play,
        button('◂', () => this.#change(-1), { 'aria-label': 'Change before' }),
        button('▸', () => this.#change(1), { 'aria-label': 'Change after' }),
        this.#time,
        this.#step,
      ),
      h('div', { class: 'timeline' }, this.#range, faultsOf(recording), this.#marks),
    );
    const width = new ResizeObserver(([entry]) => this.#mark(entry?.contentRect.width ?? 0));
    width.observe(this.#marks);
    const close = () => {
      clearInterval(this.#timer);
      width.disconnect();
    };
    end.addEventListener('abort', close, { once: true });
    this.#show();
  }

  /**
   * Follows a link to another moment.
   *
   * @param {number} at
   */
  goTo(at) {
    this.#at = at;
    this.#show();
  }

  #show() {
    const { steps } = this.#recording;
    this.#range.value = String(this.#at);
    this.#range.setAttribute('aria-valuetext', shown(this.#at));
    setText(this.#time, `${shown(this.#at)} of ${shown(this.#recording.duration)}`);
    const step = steps.findLast(({ from }) => from <= this.#at);
    setText(this.#step, step ? titleOf(step) : 'Before the first step');
  }

  /**
   * Draws the marks of the steps.
   *
   * @param {number} width in pixels
   */
  #mark(width) {
    const { duration, steps } = this.#recording;
    const groups = placeMarks(steps, duration, width).map(({ label, left, steps: of }) => {
      const titles = of.map((step) => `${titleOf(step)}${outcomeOf(step)}`);
      const count = of.length > 1 ? `${counted(of.length, 'step')}:\n` : '';
      const mark = button(label, () => this.#next(of), {
        class: of.some(isFailed) ? 'mark failed' : 'mark',
        title: `${count}${titles.join('\n')}`,
        'aria-label':
          of.length > 1 ? `${counted(of.length, 'step')}, ${label}` : (titles[0] ?? label),
      });
      mark.style.left = `${left}px`;
      return mark;
    });
    replace(this.#marks, ...groups);
  }

  /**
   * Goes to the end of the next of some steps, and from the last one to the first.
   *
   * @param {Step[]} steps
   */
  #next(steps) {
    const next = steps.find(({ to }) => to > this.#at + PRECISION / 2) ?? steps[0];
    // From before them to the first one.
    const isInside = steps.some(({ from }) => from <= this.#at);
    const step = isInside ? next : steps[0];
    if (step) this.#move(step.to);
    this.focus();
  }

  /** Lets the arrow keys go from change to change. */
  focus() {
    this.#range.focus({ preventScroll: true });
  }

  /** @param {number} at */
  #move(at) {
    this.#at = Math.min(this.#recording.duration, Math.max(0, at));
    this.#show();
    this.#onMoment(this.#at);
  }

  /**
   * Goes to the next or the last change.
   *
   * @param {1 | -1} direction
   */
  #change(direction) {
    const { times, duration } = this.#recording;
    const later = times.find((time) => time > this.#at + PRECISION) ?? duration;
    const earlier = times.findLast((time) => time < this.#at - PRECISION) ?? 0;
    this.#move(direction === 1 ? later : earlier);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.key === 'ArrowRight' || event.key === 'ArrowUp') this.#change(1);
    else if (event.key === 'ArrowLeft' || event.key === 'ArrowDown') this.#change(-1);
    else if (event.key === ' ') this.#toggle();
    else return;
    event.preventDefault();
  }

  #toggle() {
    const isPlaying = this.#timer !== undefined;
    clearInterval(this.#timer);
    this.#timer = undefined;
    setText(this.#play, isPlaying ? 'Play' : 'Pause');
    if (isPlaying) return;
    if (this.#at >= this.#recording.duration) this.#move(0);
    this.#timer = setInterval(() => {
      this.#move(this.#at + 1 / FRAMES);
      if (this.#at >= this.#recording.duration) this.#toggle();
    }, 1000 / FRAMES);
  }
}
