// Values that views follow.

/**
 * @template T
 */
export class Signal {
  /** @type {T} */ #value;
  /** @type {Set<(value: T) => void>} */ #listeners = new Set();
  #isScheduled = false;

  /** @param {T} value */
  constructor(value) {
    this.#value = value;
  }

  get value() {
    return this.#value;
  }

  /**
   * Sets the value. Listeners are called once for all changes of a frame.
   *
   * @param {T} value
   */
  set(value) {
    this.#value = value;
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    soon(() => {
      this.#isScheduled = false;
      for (const listener of [...this.#listeners]) listener(this.#value);
    });
  }

  /**
   * Calls a listener now and after each change, until the view ends.
   *
   * @param {AbortSignal} end
   * @param {(value: T) => void} listener
   */
  follow(end, listener) {
    if (end.aborted) return;
    this.#listeners.add(listener);
    end.addEventListener('abort', () => this.#listeners.delete(listener), { once: true });
    listener(this.#value);
  }
}

/**
 * Runs a function with the next frame; a hidden page has none.
 *
 * @param {() => void} run
 */
export function soon(run) {
  if (document.visibilityState === 'visible') requestAnimationFrame(run);
  else setTimeout(run, 0);
}

/**
 * Runs a function at most once in an interval and never twice at once, with one more run after the
 * last call.
 *
 * @param {number} milliseconds
 * @param {AbortSignal} end
 * @param {() => void | Promise<void>} run
 */
export function throttled(milliseconds, end, run) {
  let last = -Infinity;
  let isRunning = false;
  let isWanted = false;
  /** @type {number | undefined} */
  let timer;
  end.addEventListener('abort', () => clearTimeout(timer), { once: true });
  const go = async () => {
    timer = undefined;
    [isRunning, isWanted] = [true, false];
    last = performance.now();
    try {
      await run();
    } finally {
      isRunning = false;
      if (isWanted) ask();
    }
  };
  const ask = () => {
    isWanted = true;
    if (timer !== undefined || isRunning || end.aborted) return;
    timer = setTimeout(go, Math.max(0, last + milliseconds - performance.now()));
  };
  return ask;
}
