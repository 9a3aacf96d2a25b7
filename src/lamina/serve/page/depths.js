// The slider, the layers that run, and the table of all depths.

import { $, Failure, ask, make, milliseconds, sleep } from "./client.js"

const PAUSE_MS = 700 // before every depth is tried: typing has not ended
const MAX_CHARS = 600
const MOST_KNOWN = 400

export const nameOf = depth => `${depth.encoder}–${depth.decoder}`
const inWords = ({ encoder, decoder }) => `${encoder} encoder and ${decoder} decoder layer${decoder > 1 ? "s" : ""}`

export class Depths {
  constructor(changed) {
    this.changed = changed
    this.pair = null
    this.known = new Map() // text and depth to answer
    $("depth").addEventListener("input", () => { this.draw(); changed() })
    $("compare").addEventListener("toggle", () => this.compare(this.request))
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.compare(this.request) })
  }

  use(pair) {
    this.pair = pair
    this.known.clear()
    const several = pair.depths.length > 1
    $("depth-card").hidden = !several
    const slider = $("depth")
    slider.max = pair.depths.length - 1
    slider.value = slider.max
    $("depth-ticks").replaceChildren(...pair.depths.map((depth, place) => make("option", { value: place })))
    $("depth-note").textContent = pair.has_layerdrop
      ? "One checkpoint, trained with LayerDrop: it translates with any number of its layers. Fewer are faster."
      : "This model was trained without LayerDrop: with fewer layers it gets much worse."
    $("stacks").replaceChildren(...["encoder", "decoder"].map(side => make("div", { className: `stack ${side}` },
      ...Array.from({ length: pair.layers[side] }, () => make("i")), make("span", { text: side }))))
    this.draw()
    $("ladder").tBodies[0].replaceChildren()
  }

  get place() { return Number($("depth").value) }
  get isFull() { return this.place === this.pair.depths.length - 1 }

  // What a request says; nothing at full depth, which is the server's own.
  get field() {
    const { encoder, decoder } = this.pair.depths[this.place]
    return { encoder, decoder }
  }

  draw() {
    const depth = this.pair.depths[this.place]
    const said = inWords(depth)
    $("depth-value").textContent = said
    $("depth").setAttribute("aria-valuetext", said)
    for (const side of ["encoder", "decoder"]) {
      const bars = $("stacks").querySelectorAll(`.${side} i`)
      // The topmost bar is the topmost layer.
      bars.forEach((bar, place) => bar.classList.toggle("runs", depth[`${side}_layers`].includes(bars.length - 1 - place)))
    }
    this.drawChosen()
  }

  drawChosen() {
    for (const row of $("ladder").tBodies[0].rows) {
      row.classList.toggle("chosen", Number(row.dataset.place) === this.place)
      row.querySelector("button").setAttribute("aria-pressed", Number(row.dataset.place) === this.place)
    }
  }

  // An answer that the pane has had already.
  remember(request, place, answer) {
    this.known.set(this.keyOf(request, place), answer)
    if (this.known.size > MOST_KNOWN) this.known.delete(this.known.keys().next().value)
  }

  recall(request, place) { return this.known.get(this.keyOf(request, place)) }
  keyOf(request, place) { return JSON.stringify([request.q, request.source, request.target, place]) }

  async compare(request) {
    this.controller?.abort()
    this.request = request
    const isLong = (request?.q.length || 0) > MAX_CHARS
    $("compare-note").textContent = isLong ? `Texts of up to ${MAX_CHARS} characters are compared.` : "Type a text to compare."
    $("compare-note").hidden = Boolean(request) && !isLong
    $("ladder").hidden = !request || isLong
    if (!request || isLong || !this.pair || this.pair.depths.length < 2 || !$("compare").open) {
      $("ladder").tBodies[0].replaceChildren()
      return
    }
    const controller = this.controller = new AbortController()
    this.fill(request)
    await sleep(PAUSE_MS)
    for (let place = this.pair.depths.length - 1; place >= 0; place -= 1) {
      if (controller.signal.aborted || document.hidden) return
      if (this.recall(request, place)) continue
      const { encoder, decoder } = this.pair.depths[place]
      try {
        this.remember(request, place, await ask("/translate", { ...request, depth: { encoder, decoder }, alignment: true },
          controller.signal))
      } catch (error) {
        if (error instanceof Failure && error.retryAfter && !error.isLost) {
          await sleep(error.retryAfter * 1000)
          place += 1
          continue
        }
        return
      }
      if (!controller.signal.aborted) this.fill(request)
    }
  }

  fill(request) {
    const answers = this.pair.depths.map((depth, place) => this.recall(request, place))
    const seconds = answers.map(answer => answer && answer.seconds - answer.waited)
    const most = Math.max(...seconds.filter(Boolean), 1e-9)
    const best = answers.at(-1)?.translatedText
    const rows = this.pair.depths.map((depth, place) => {
      const answer = answers[place]
      const pick = make("button", { text: nameOf(depth), className: "pick", type: "button",
        "aria-label": `Use ${inWords(depth)}` })
      pick.addEventListener("click", () => { $("depth").value = place; this.draw(); this.changed() })
      const bar = make("i")
      bar.style.setProperty("--share", answer ? seconds[place] / most : 0)
      const row = make("tr", {}, make("td", {}, pick), make("td", {}, ...(answer ? compared(answer.translatedText, best) : ["…"])),
        make("td", { className: "time", text: answer ? milliseconds(seconds[place]) : "" }, ...(answer ? [bar] : [])),
        make("td", { text: answer ? Math.round(answer.tokens / Math.max(seconds[place], 1e-6)) : "" }))
      row.dataset.place = place
      return row
    })
    $("ladder").tBodies[0].replaceChildren(...rows.reverse())
    this.drawChosen()
  }
}

// The words of a translation; those that the full model's does not have in this order stand out.
function compared(text, best) {
  if (best === undefined || best === text) return [text]
  const own = text.split(" "), other = best.split(" ")
  const lengths = Array.from({ length: own.length + 1 }, () => new Uint16Array(other.length + 1))
  for (let i = own.length - 1; i >= 0; i -= 1) {
    for (let j = other.length - 1; j >= 0; j -= 1) {
      lengths[i][j] = own[i] === other[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1])
    }
  }
  const found = []
  for (let i = 0, j = 0; i < own.length; i += 1) {
    while (j < other.length && own[i] !== other[j] && lengths[i][j + 1] >= lengths[i + 1][j] && lengths[i][j + 1] === lengths[i][j]) j += 1
    const isShared = j < other.length && own[i] === other[j]
    if (isShared) j += 1
    found.push(isShared ? own[i] : make("span", { text: own[i], className: "differs" }), " ")
  }
  return found
}
