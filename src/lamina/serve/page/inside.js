// What a fused model reads: encoder layers, and the source surface.

import { $, ask, make } from "./client.js"

const PAUSE_MS = 500
const percent = share => `${Math.round(share * 100)} %`

export class Inside {
  constructor() { this.controller = null }

  use(pair) {
    this.pair = pair
    $("inside-card").hidden = !pair.fusion && !pair.surface
    $("fusion").hidden = !pair.fusion
    $("surface").hidden = !pair.surface
    $("surface-note").textContent = pair.surface ? aboutSurface(pair.surface) : ""
    $("surface-words").replaceChildren()
    if (pair.fusion) this.drawShares(pair.fusion)
  }

  drawShares({ columns, shares }) {
    const most = Math.max(...shares.flat())
    const head = make("tr", {}, make("td", {}, make("span", { className: "visually-hidden", text: "reads" })),
      ...columns.map(name => make("th", { scope: "col", text: name.replace("layer ", ""), title: name })))
    const rows = shares.map((row, layer) => make("tr", {}, make("th", { scope: "row", text: `decoder ${layer + 1}` }),
      ...row.map((share, place) => {
        const cell = make("td", { text: Math.round(share * 100), title: `${columns[place]}: ${percent(share)}` })
        cell.style.setProperty("--share", share / most)
        return cell
      })))
    $("shares").replaceChildren(make("caption", { className: "visually-hidden", text: "Shares in per cent" }),
      make("thead", {}, head), make("tbody", {}, ...rows.reverse()))
  }

  async look(request) {
    this.controller?.abort()
    clearTimeout(this.timer)
    if (!request) $("surface-words").replaceChildren()
    if (!request || !this.pair.surface?.is_per_word) return
    const controller = this.controller = new AbortController()
    this.timer = setTimeout(async () => {
      const { q, source, target } = request
      const found = await ask("/inspect", { text: q, source, target }, controller.signal).catch(() => null)
      if (!found?.words || controller.signal.aborted) return
      $("surface-words").replaceChildren(...found.words.map(word => {
        const element = make("span", { text: word.text }, make("small", { text: word.surface === null ? "–" : percent(word.surface) }))
        element.style.setProperty("--share", word.surface ?? 0)
        return element
      }))
    }, PAUSE_MS)
  }
}

function aboutSurface({ reads, share, is_per_word: isPerWord }) {
  const what = `The softmax reads ${reads}.`
  if (share !== null) return `${what} The source surface has ${percent(share)} of each word's scores.`
  return isPerWord ? `${what} Its share for each word, with all layers:` : what
}
