// Requests to the own origin: documents, and streams that are opened again when they end.

/** @import { PageServer, Session } from '../types/contract.js' */

const LEAST_PAUSE = 500;
const LONGEST_PAUSE = 5000;
/** Streams of the summary have a bookmark each 15 seconds: one that is silent is lost. */
const LONGEST_SILENCE = 40_000;

/** An answer of the server that is not 2xx, with the message of its `Status`. */
export class ServerError extends Error {
  /**
   * @param {number} code
   * @param {string} message
   */
  constructor(code, message) {
    super(message);
    this.name = 'ServerError';
    this.code = code;
  }
}

/**
 * @param {unknown} error
 * @returns {boolean}
 */
export function isAbort(error) {
  return error instanceof DOMException && error.name === 'AbortError';
}

/** @param {Response} response */
async function failure(response) {
  const text = await response.text();
  try {
    const status = JSON.parse(text);
    if (typeof status.message === 'string') return new ServerError(response.status, status.message);
  } catch {
    // Not a Status: the text is shown as it is.
  }
  const said = text.trim() || response.statusText || 'no message';
  return new ServerError(response.status, `HTTP ${response.status}: ${said}`);
}

export class Api {
  /** The pasted token; it is nowhere else. */
  #token = '';
  /** The moment of a recording, in seconds. @type {string | null} */
  at = null;
  /** Called when the server takes the credentials no longer. @type {() => void} */
  onUnauthorized = () => {};

  /**
   * @param {string} path
   * @param {string | null} at
   */
  #url(path, at) {
    if (at === null) return path;
    return `${path}${path.includes('?') ? '&' : '?'}at=${at}`;
  }

  /**
   * @param {string} path
   * @param {RequestInit} [init]
   */
  async #fetch(path, init = {}) {
    const headers = new Headers(init.headers);
    if (this.#token) headers.set('Authorization', `Bearer ${this.#token}`);
    const response = await fetch(path, { ...init, headers, cache: 'no-store' });
    if (response.ok) return response;
    throw await failure(response);
  }

  /**
   * @param {string} path
   * @param {RequestInit} init
   * @param {string | null} [at]
   */
  async #data(path, init, at = this.at) {
    try {
      return await this.#fetch(this.#url(path, at), init);
    } catch (error) {
      if (error instanceof ServerError && error.code === 401) this.onUnauthorized();
      throw error;
    }
  }

  /**
   * @template T
   * @param {string} path
   * @param {AbortSignal} [signal]
   * @param {string | null} [at] the moment of a recording, in place of the present one
   * @returns {Promise<T>}
   */
  async json(path, signal, at) {
    const init = { signal: signal ?? null, headers: { Accept: 'application/json' } };
    return (await this.#data(path, init, at)).json();
  }

  /**
   * @param {string} path
   * @param {AbortSignal} signal
   */
  async yaml(path, signal) {
    const init = { signal, headers: { Accept: 'application/yaml' } };
    return (await this.#data(path, init)).text();
  }

  /**
   * Which server it is, and whether it wants a login.
   *
   * @returns {Promise<PageServer>}
   */
  async server() {
    return (await this.#fetch('/ui/server')).json();
  }

  /** @returns {Promise<Session>} */
  async session() {
    return (await this.#fetch('/ui/session')).json();
  }

  /**
   * Logs in with a bearer token, which stays in memory.
   *
   * @param {string} token
   * @returns {Promise<Session>}
   */
  async logIn(token) {
    this.#token = token;
    try {
      return await this.session();
    } catch (error) {
      this.#token = '';
      throw error;
    }
  }

  /**
   * Exchanges a one-time token of a listener for the cookie of a session.
   *
   * @param {string} token
   */
  async exchange(token) {
    await this.#fetch('/ui/session', {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify({ token }),
    });
  }

  async logOut() {
    if (this.#token) this.#token = '';
    else await this.#fetch('/ui/session', { method: 'DELETE' });
  }

  /**
   * Follows a stream of lines. It is opened again when it ends, with all of its content.
   *
   * @template T
   * @param {string} path
   * @param {AbortSignal} end
   * @param {object} handlers
   * @param {() => void} [handlers.onOpen] after each time that it was opened
   * @param {(document: T) => void} handlers.onDocument
   * @param {(error: unknown) => void} handlers.onLost after each failure that is tried again
   * @param {(error: ServerError) => void} handlers.onRefused an answer that does not change
   * @param {number} [handlers.silence] the milliseconds after which a silent stream is lost
   */
  async follow(path, end, { onOpen, onDocument, onLost, onRefused, silence = LONGEST_SILENCE }) {
    let pause = LEAST_PAUSE;
    while (!end.aborted) {
      await visible(end);
      const attempt = new AbortController();
      const stop = () => attempt.abort();
      end.addEventListener('abort', stop, { once: true });
      const hidden = whenHidden(stop);
      let timer = setTimeout(stop, silence);
      try {
        const response = await this.#data(path, { signal: attempt.signal });
        onOpen?.();
        for await (const line of lines(response)) {
          clearTimeout(timer);
          timer = setTimeout(stop, silence);
          onDocument(JSON.parse(line));
          pause = LEAST_PAUSE;
        }
        // Servers end streams after a while: it is only lost if it cannot be opened again.
      } catch (error) {
        if (end.aborted) return;
        if (error instanceof ServerError && error.code < 500 && error.code !== 429) {
          onRefused(error);
          return;
        }
        if (document.visibilityState === 'visible') onLost(error);
      } finally {
        clearTimeout(timer);
        hidden();
        end.removeEventListener('abort', stop);
      }
      await delay(pause, end);
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    }
  }
}

/**
 * The lines of a body.
 *
 * @param {Response} response
 */
async function* lines(response) {
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  /** @type {string[]} */
  let begun = [];
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = value.split('\n');
    const rest = parts.pop() ?? '';
    for (const part of parts) {
      const line = [...begun, part].join('');
      begun = [];
      if (line) yield line;
    }
    if (rest) begun.push(rest);
  }
}

/**
 * Resolves when the page is visible: a hidden page has no streams, since browsers allow few
 * connections to a server.
 *
 * @param {AbortSignal} end
 * @returns {Promise<void>}
 */
function visible(end) {
  return new Promise((resolve) => {
    const check = () => {
      if (document.visibilityState !== 'visible' && !end.aborted) return;
      document.removeEventListener('visibilitychange', check);
      end.removeEventListener('abort', check);
      resolve();
    };
    document.addEventListener('visibilitychange', check);
    end.addEventListener('abort', check);
    check();
  });
}

/**
 * @param {() => void} stop
 * @returns {() => void} ends it
 */
function whenHidden(stop) {
  const check = () => {
    if (document.visibilityState === 'hidden') stop();
  };
  document.addEventListener('visibilitychange', check);
  return () => document.removeEventListener('visibilitychange', check);
}

/**
 * @param {number} milliseconds
 * @param {AbortSignal} end
 * @returns {Promise<void>}
 */
function delay(milliseconds, end) {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      end.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, milliseconds);
    end.addEventListener('abort', done);
  });
}
