// The two panes: translation while one types.

import { $, Failure, ask, make, milliseconds, sleep } from "./client.js"
import { Depths, nameOf } from "./depths.js"
import { Inside } from "./inside.js"
import { Words } from "./words.js"

const DEBOUNCE_MS = 250
const SLOW_MS = 1500
const NBEST = 5
const MOST_TRIES = 5
const HINT = "The translation appears here. Point at one of its words to see where it comes from."

export class Translate {
  constructor(models) {
    this.pairs = models.translation
    this.limits = models.limits
    this.words = new Words($("target"), $("backdrop"), $("source"))
    this.depths = new Depths(() => this.changed(0))
    this.inside = new Inside()
    this.controller = null
    $("source").addEventListener("input", () => this.typed())
    $("from").addEventListener("change", () => { this.fillTargets(); this.usePair() })
    $("to").addEventListener("change", () => this.usePair())
    $("swap").addEventListener("click", () => this.swap())
    $("clear").addEventListener("click", () => { $("source").value = ""; this.typed(); $("source").focus() })
    $("copy").addEventListener("click", () => this.copy())
    $("more").addEventListener("click", () => this.toggleAlternatives())
    $("cancel").addEventListener("click", () => { this.controller?.abort(); this.say("Cancelled.") })
    $("target").addEventListener("word", event => { if (event.detail) this.say(event.detail); else if (this.facts) this.say(this.facts) })
    this.fillSources()
    this.typed()
  }

  fillSources() {
    const sources = new Map(this.pairs.map(pair => [pair.source, pair.source_name]))
    $("from").replaceChildren(...[...sources].map(([code, name]) => make("option", { value: code, text: name })))
    this.fillTargets()
    this.usePair()
  }

  fillTargets() {
    const before = $("to").value
    const own = this.pairs.filter(pair => pair.source === $("from").value)
    $("to").replaceChildren(...own.map(pair => make("option", { value: pair.target, text: pair.target_name })))
    if (own.some(pair => pair.target === before)) $("to").value = before
  }

  get pair() { return this.pairs.find(pair => pair.source === $("from").value && pair.target === $("to").value) }
  get reverse() { return this.pairs.find(pair => pair.source === $("to").value && pair.target === $("from").value) }

  usePair() {
    const pair = this.pair
    $("swap").hidden = !this.reverse
    $("source").lang = pair.source
    $("target").lang = pair.target
    this.depths.use(pair)
    this.inside.use(pair)
    const { encoder, decoder } = pair.layers
    $("shape").textContent = `${pair.source}–${pair.target}: ${encoder} + ${decoder} layers, ${(pair.parameters / 1e6).toFixed(1)} M parameters`
    this.changed(0)
  }

  swap() {
    const { source, target } = this.pair
    const text = this.words.text || $("source").value
    $("from").value = target
    this.fillTargets()
    $("to").value = source
    $("source").value = text
    this.usePair()
    this.typed()
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(this.words.text)
      $("copy").textContent = "Copied"
    } catch {
      $("copy").textContent = "Not allowed"
    }
    setTimeout(() => { $("copy").textContent = "Copy" }, 1500)
  }

  typed() {
    const length = $("source").value.length
    const isOver = length > this.limits.chars
    $("count").textContent = `${length.toLocaleString()} / ${this.limits.chars.toLocaleString()} characters${isOver ? ": too many, shorten the text" : ""}`
    $("count").classList.toggle("over", isOver)
    $("clear").hidden = !length
    this.words.mark([])
    this.changed(DEBOUNCE_MS)
  }

  changed(pause) {
    this.controller?.abort()
    this.depths.controller?.abort()
    clearTimeout(this.timer)
    this.settle()
    this.hideAlternatives()
    const text = $("source").value
    if (!text.trim()) {
      this.words.set("", "", [])
      $("target").classList.remove("stale")
      $("target").replaceChildren(make("span", { className: "hint", text: HINT }))
      $("copy").hidden = $("more").hidden = true
      this.say("")
      this.depths.compare(null)
      this.inside.look(null)
      return
    }
    $("target").classList.add("stale")
    if (text.length > this.limits.chars) {
      this.say(`The text is longer than the ${this.limits.chars.toLocaleString()} characters that this server takes.`, true)
      return
    }
    this.timer = setTimeout(() => this.translate(), pause)
  }

  settle() {
    $("cancel").hidden = true
    $("target").removeAttribute("aria-busy")
  }

  get request() { return { q: $("source").value, source: $("from").value, target: $("to").value } }

  async translate() {
    const controller = this.controller = new AbortController()
    const request = this.request, place = this.depths.place
    const known = this.depths.recall(request, place)
    if (known) return this.show(request, known)
    $("target").setAttribute("aria-busy", "true")
    const started = performance.now()
    let state = "Still translating"
    const slow = setInterval(() => {
      const passed = performance.now() - started
      if (passed < SLOW_MS || controller.signal.aborted) return
      $("cancel").hidden = false
      this.say(`${state}, ${Math.round(passed / 1000)} s …`)
    }, 500)
    try {
      const answer = await patiently(() => ask("/translate", { ...request, depth: this.depths.field, alignment: true },
        controller.signal), controller.signal, isBusy => { state = isBusy ? "The server is busy, waiting" : "Still translating" })
      this.depths.remember(request, place, answer)
      this.show(request, answer)
    } catch (error) {
      if (error.name !== "AbortError") this.say(error.message, true)
    } finally {
      clearInterval(slow)
      if (this.controller === controller) this.settle()
    }
  }

  show(request, answer) {
    this.words.set(answer.translatedText, request.q, answer.hypotheses?.[0]?.alignment)
    $("target").classList.remove("stale")
    $("copy").hidden = $("more").hidden = false
    const seconds = answer.seconds - answer.waited
    this.facts = `${milliseconds(seconds)} · ${nameOf(answer.depth)} layers · ${Math.round(answer.tokens / Math.max(seconds, 1e-6))} tokens/s`
      + (answer.warning ? ` · ${answer.warning}` : "")
    this.say(this.facts)
    this.depths.compare(request)
    this.inside.look(request)
  }

  // After a lost server is back.
  again() { if ($("source").value.trim()) this.changed(0) }

  async toggleAlternatives() {
    if (!$("nbest").hidden) return this.hideAlternatives()
    const number = Math.min(NBEST, this.limits.beam)
    $("nbest").hidden = false
    $("more").setAttribute("aria-expanded", "true")
    $("nbest").replaceChildren(make("li", { className: "empty", text: "…" }))
    try {
      const answer = await ask("/translate", { ...this.request, depth: this.depths.field, nbest: number, scores: true })
      const seen = new Set()
      $("nbest").replaceChildren(...answer.hypotheses.filter(own => !seen.has(own.text) && seen.add(own.text)).map(own =>
        make("li", { text: own.text }, make("span", { className: "score", text: own.score.toFixed(3), title: "mean log-probability" }))))
    } catch (error) {
      this.hideAlternatives()
      this.say(error.message, true)
    }
  }

  hideAlternatives() {
    $("nbest").hidden = true
    $("more").setAttribute("aria-expanded", "false")
  }

  say(text, isBad = false) {
    $("facts").textContent = text
    $("facts").classList.toggle("bad", isBad)
    if (isBad) this.facts = ""
  }
}

// A server that is busy says after how many seconds to ask again.
async function patiently(run, signal, told) {
  for (let tries = 1; ; tries += 1) {
    told(false)
    try {
      return await run()
    } catch (error) {
      if (!(error instanceof Failure && error.status === 503 && error.retryAfter && tries < MOST_TRIES)) throw error
      told(true)
      await sleep(error.retryAfter * 1000)
      signal.throwIfAborted()
    }
  }
}
