// The slider through a recording.

/** @import { Recording } from '../types/contract.js' */

import { button, h, setText } from './dom.js';

/** Steps of a second of playing. */
const FRAMES = 10;

/** @param {number} seconds */
function shown(seconds) {
  return `${seconds.toFixed(2)} s`;
}

export class Slider {
  element;
  #recording;
  #onMoment;
  #range;
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
    end.addEventListener('abort', () => clearInterval(this.#timer), { once: true });
    this.#recording = recording;
    this.#onMoment = onMoment;
    this.#at = at;
    const { duration, steps, name } = recording;
    this.#range = h('input', {
      id: 'moment',
      type: 'range',
      min: '0',
      max: duration,
      step: '0.01',
      'aria-label': `Moment of the recording ${name}`,
    });
    this.#range.addEventListener('input', () => this.#move(Number(this.#range.value)));
    this.#range.addEventListener('keydown', (event) => this.#key(event));
    const marks = steps.map((step) => {
      const text = `Step ${step.number}: ${step.title}`;
      const mark = button(String(step.number), () => this.#move(step.to), {
        class: step.outcome === 'ok' ? 'mark' : 'mark failed',
        title: `${text} (${step.outcome})`,
        'aria-label': text,
      });
      mark.style.left = `${duration > 0 ? (100 * step.from) / duration : 0}%`;
      return mark;
    });
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
      h('div', { class: 'timeline' }, this.#range, h('div', { class: 'marks' }, ...marks)),
    );
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
    setText(this.#step, step ? `${step.number}. ${step.title}` : 'before the first step');
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
    const later = times.find((time) => time > this.#at + 0.005) ?? duration;
    const earlier = times.findLast((time) => time < this.#at - 0.005) ?? 0;
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
