// The page: the session, the frame around the views, and the way from the address to a view.

/** @import { PageServer, Recording, Session } from '../types/contract.js' */
/** @import { Context } from './views.js' */

import { clock, presentClock, renewAges } from './ages.js';
import { Api, ServerError } from './api.js';
import { ClusterFeed } from './cluster.js';
import { button, h, replace, setText } from './dom.js';
import { hasToken, loginForm, loginNote, takeToken } from './login.js';
import { errorBox, hint } from './messages.js';
import { Slider, momentOf, momentText } from './recording.js';
import { link, parse } from './route.js';
import { search } from './search.js';
import { throttled } from './signal.js';
import { theme, themeSwitch } from './theme.js';
import { NAVIGATION, viewOf } from './views.js';

/** @param {string} id */
function part(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`index.html has no #${id}`);
  return found;
}

/** The least time between two readings, live and while the slider moves, in milliseconds. */
const PAUSE = { live: 1000, recording: 60 };

/**
 * The least time between two changes of the address while the slider moves, in milliseconds:
 * Safari allows 100 of them in 30 seconds, and throws beyond.
 */
const ADDRESS_PAUSE = 500;

/** The time after which ages are written anew, in milliseconds. */
const AGE_EVERY = 1000;

/** The states of the connection, in words. */
const CONNECTIONS = {
  connecting: 'connecting …',
  live: 'live',
  lost: 'connection lost; retrying …',
  refused: 'refused',
  recording: 'recording',
};

class Page {
  #api = new Api();
  #feed = new ClusterFeed(this.#api);
  /** Ends with the session. */ #session = new AbortController();
  /** Ends with the view. */ #view = new AbortController();
  /** Of the server. @type {PageServer['source']} */ #source = 'apiserver';
  /** @type {Session | null} */ #user = null;
  /** @type {Slider | null} */ #slider = null;
  /** Of the recording, in seconds. */ #duration = 0;
  /** Reads the cluster at the moment of the recording. */ #readMoment = () => {};
  #main = part('main');
  /** The address of the view that is shown. @type {string | null} */ #shown = null;

  start() {
    this.#api.onUnauthorized = () => {
      if (this.#user) this.#logIn('The server takes the credentials no longer.');
    };
    part('settings').append(themeSwitch());
    // The fragment is the address of a view, so the link cannot have one of its own.
    part('skip').addEventListener('click', (event) => {
      event.preventDefault();
      this.#main.focus();
    });
    window.addEventListener('hashchange', () => this.#follow());
    this.#feed.connection.follow(new AbortController().signal, () => this.#connection());
    setInterval(renewAges, AGE_EVERY);
    void this.#open();
  }

  /** Begins with the session that the browser has, or with the token of the address. */
  async #open() {
    this.#end();
    const token = takeToken();
    try {
      const { source, needsLogin } = await this.#api.server();
      this.#source = source;
      if (needsLogin) {
        // Only a listener has one-time tokens.
        if (token === null || source === 'apiserver') {
          this.#logIn('');
          return;
        }
        await this.#api.exchange(token);
      }
      await this.#begin(await this.#api.session());
    } catch (error) {
      const isRefused = error instanceof ServerError && error.code === 401;
      if (isRefused) this.#logIn(error.message);
      else replace(this.#main, h('h1', { tabindex: '-1' }, 'No answer'), errorBox(error));
    }
  }

  #connection() {
    const { state, error } = this.#feed.connection.value;
    const shown = part('connection');
    shown.dataset['state'] = this.#user ? state : '';
    shown.title = error;
    setText(shown, this.#user ? CONNECTIONS[state] : '');
    const isRefused = this.#user !== null && state === 'refused';
    replace(part('problem'), ...(isRefused ? this.#refusal(error) : []));
  }

  /**
   * Says what the user lacks, and how to get it.
   *
   * @param {string} error
   */
  #refusal(error) {
    const again = button('Try again', () => this.#feed.follow(this.#session.signal));
    if (this.#user?.source === 'recording') return [errorBox(error)];
    return [
      errorBox(error),
      hint(
        'The page needs the rights to list and watch all pods, nodes and Services, and to list blocks. An administrator gives them:',
        'kubectl create clusterrole page --verb=list,watch --resource=pods,nodes,services',
        'kubectl patch clusterrole page --type=json --patch=\'[{"op": "add", "path": "/rules/-", "value": {"apiGroups": ["ipam.podplane.io"], "resources": ["blocks"], "verbs": ["list"]}}]\'',
        `kubectl create clusterrolebinding page --clusterrole=page --user=${this.#user?.user ?? 'NAME'}`,
      ),
      again,
    ];
  }

  /** @param {Session} session */
  async #begin(session) {
    this.#user = session;
    this.#session = new AbortController();
    this.#connection();
    this.#frame(session);
    if (session.source === 'recording') await this.#record();
    else this.#feed.follow(this.#session.signal);
    this.#shown = null;
    this.#show();
  }

  /** @param {Session} session */
  #frame({ user, server, source }) {
    const items = NAVIGATION.map(([path, text]) =>
      h('li', {}, h('a', { href: link(path ? [path] : []) }, text)),
    );
    replace(part('navigation'), h('ul', {}, ...items));
    this.#navigation();
    replace(part('find'), search(this.#api, this.#feed, this.#session.signal));
    const leave = button('Log out', () => this.#leave());
    // A server that asks for no credentials has nothing to log out from.
    const canLeave = source !== 'apiserver' || user !== null;
    replace(
      part('user'),
      h('span', { title: `${user ?? ''} ${server}`.trim() }, user ?? server),
      canLeave && leave,
    );
  }

  /** Marks the link of the view. The links stay, with the focus and with clicks on them. */
  #navigation() {
    const here = parse(location.hash).path[0] ?? '';
    const group = { node: 'nodes', pod: 'pods' }[here] ?? here;
    for (const item of part('navigation').querySelectorAll('a')) {
      const isHere = (parse(item.hash).path[0] ?? '') === group;
      if (isHere) item.setAttribute('aria-current', 'page');
      else item.removeAttribute('aria-current');
    }
  }

  async #record() {
    /** @type {Recording} */
    const recording = await this.#api.json('/summary/v1alpha1/recording', this.#session.signal);
    this.#duration = recording.duration;
    const began = Date.parse(recording.began ?? '');
    if (!Number.isNaN(began)) clock.now = () => began + Number(this.#api.at) * 1000;
    const at = momentOf(parse(location.hash).query.get('at'), recording.duration) ?? 0;
    const { signal } = this.#session;
    this.#readMoment = throttled(PAUSE.recording, signal, () => this.#feed.read(signal));
    const writeMoment = throttled(ADDRESS_PAUSE, signal, () => {
      // An address that has just changed is followed first, and names its own moment.
      if (location.hash !== this.#shown) return;
      this.#writeMoment();
      this.#shown = location.hash;
    });
    this.#slider = new Slider(recording, at, signal, (to) => {
      this.#is(to);
      this.#readMoment();
      writeMoment();
    });
    this.#is(at);
    this.#writeMoment();
    this.#readMoment();
    replace(part('recording'), this.#slider.element);
    this.#slider.focus();
  }

  /**
   * Goes to a moment of a recording.
   *
   * @param {number} seconds
   */
  #is(seconds) {
    this.#api.at = momentText(seconds);
    renewAges();
  }

  /** Lets the address name the moment. */
  #writeMoment() {
    const { path, query } = parse(location.hash);
    const { at } = this.#api;
    history.replaceState(null, '', link(path, { ...Object.fromEntries(query), at }));
  }

  /** Follows the address to another session, view, or moment of a recording. */
  #follow() {
    if (hasToken()) {
      void this.#open();
      return;
    }
    const linked = parse(location.hash).query.get('at');
    if (this.#slider && linked !== this.#api.at) {
      // Links of the page name no moment: they keep the present one.
      const at = momentOf(linked, this.#duration) ?? Number(this.#api.at);
      this.#is(at);
      this.#writeMoment();
      this.#slider.goTo(at);
      this.#readMoment();
    }
    if (this.#user) this.#show();
  }

  #show() {
    if (location.hash === this.#shown) return;
    const before = this.#shown === null ? null : parse(this.#shown);
    this.#shown = location.hash;
    this.#view.abort();
    this.#view = new AbortController();
    const route = parse(location.hash);
    const isLive = this.#user?.source !== 'recording';
    /** @type {Context} */
    const context = {
      api: this.#api,
      feed: this.#feed,
      theme,
      route,
      end: this.#view.signal,
      isLive,
      pause: isLive ? PAUSE.live : PAUSE.recording,
      knowsMachine: this.#user?.source === 'listener',
    };
    const view = viewOf(context);
    const title = view?.title ?? 'No such view';
    document.title = `${title} · podplane`;
    const heading = h('h1', { tabindex: '-1' }, title);
    const missing = h('p', {}, h('a', { href: link([]) }, 'Go to the overview'));
    replace(this.#main, heading, view?.element ?? missing);
    this.#navigation();
    view?.start?.();
    // Another view begins at its heading, but not the first one; a map that is zoomed keeps the
    // focus.
    if (before && before.path.join() !== route.path.join()) heading.focus();
  }

  /** @param {string} reason */
  #logIn(reason) {
    this.#end();
    const content =
      this.#source === 'apiserver'
        ? loginForm(this.#api, reason, (session) => this.#begin(session))
        : loginNote(this.#source, reason);
    replace(this.#main, content);
    document.title = 'Log in · podplane';
    (content.querySelector('input') ?? content.querySelector('h1'))?.focus();
  }

  #end() {
    this.#user = null;
    this.#session.abort();
    this.#view.abort();
    this.#slider = null;
    this.#api.at = null;
    presentClock();
    for (const id of ['navigation', 'find', 'user', 'recording']) replace(part(id));
    this.#connection();
  }

  async #leave() {
    // First of all, since requests that are under way then would be refused.
    this.#end();
    try {
      await this.#api.logOut();
      this.#logIn('');
    } catch (error) {
      await this.#open();
      replace(part('problem'), errorBox(error));
    }
  }
}

new Page().start();
