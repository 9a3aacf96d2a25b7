// Words of a translation, and the source words that each of them looked at.

import { make } from "./client.js"

// As the server counts them: words are what white space separates.
const cut = text => text.split(/(\s+)/u).filter(piece => piece !== "")
const isSpace = piece => /^\s+$/u.test(piece)

export class Words {
  constructor(target, backdrop, source) {
    Object.assign(this, { target, backdrop, source, spans: [], alignment: [], active: -1, text: "" })
    target.addEventListener("pointerover", event => this.show(this.spans.indexOf(event.target.closest(".word"))))
    // A finger leaves at once: what it touched stays, until it touches something else.
    target.addEventListener("pointerleave", event => { if (event.pointerType !== "touch") this.show(-1) })
    document.addEventListener("pointerdown", event => { if (!target.contains(event.target)) this.show(-1) })
    target.addEventListener("focus", () => { if (this.alignment.length && target.matches(":focus-visible")) this.show(0) })
    target.addEventListener("blur", () => this.show(-1))
    target.addEventListener("keydown", event => {
      const step = { ArrowRight: 1, ArrowLeft: -1, Escape: 0 }[event.key]
      if (step === undefined || !this.spans.length) return
      event.preventDefault()
      this.show(step ? (this.active + step + this.spans.length) % this.spans.length : -1)
    })
    source.addEventListener("scroll", () => { backdrop.scrollTop = source.scrollTop })
  }

  set(text, sourceText, alignment) {
    this.text = text
    this.sourceText = sourceText
    this.alignment = alignment || []
    this.spans = []
    this.active = -1
    this.target.replaceChildren(...cut(text).map(piece => {
      if (isSpace(piece)) return piece
      const word = make("span", { text: piece, className: "word" })
      this.spans.push(word)
      return word
    }))
    this.spans.forEach((word, number) => {
      const own = this.sourcesOf(number)
      if (own.length) word.title = own.join(" ")
    })
    this.mark([])
  }

  sourcesOf(number) {
    const words = (this.sourceText || "").split(/\s+/u).filter(Boolean)
    return (this.alignment[number] || []).map(place => words[place]).filter(Boolean)
  }

  show(number) {
    if (number === this.active) return
    this.spans[this.active]?.classList.remove("active")
    this.active = number
    this.spans[number]?.classList.add("active")
    this.mark(this.source.value === this.sourceText ? this.alignment[number] || [] : [])
    const said = number < 0 ? "" : `“${this.spans[number].textContent}” looks at “${this.sourcesOf(number).join(" ")}”`
    this.target.dispatchEvent(new CustomEvent("word", { detail: said }))
  }

  mark(places) {
    const wanted = new Set(places)
    let number = -1
    this.backdrop.replaceChildren(...cut(this.source.value).map(piece => {
      if (isSpace(piece)) return piece
      number += 1
      return wanted.has(number) ? make("mark", { text: piece }) : piece
    }))
    this.backdrop.scrollTop = this.source.scrollTop
  }
}
