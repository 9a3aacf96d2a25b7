// Language models write, masked ones fill gaps.

import { $, ask, make, raw } from "./client.js"

export class Write {
  constructor(models) {
    this.controller = null
    $("writer").replaceChildren(...models.language.map(name => make("option", { value: name, text: name })))
    $("tokens").max = models.limits.new_tokens
    $("temperature").addEventListener("input", () => { $("temperature-value").textContent = $("temperature").value })
    $("write-go").addEventListener("click", () => this.go())
    $("write-stop").addEventListener("click", () => this.controller?.abort())
    $("prompt").addEventListener("keydown", event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.go() })
  }

  async go() {
    this.controller?.abort()
    const controller = this.controller = new AbortController()
    const prompt = $("prompt").value, started = performance.now()
    const more = make("b")
    $("written").replaceChildren(prompt, more)
    $("write-stop").hidden = false
    $("write-facts").textContent = "writing …"
    try {
      const answer = await raw("/v1/completions", { model: $("writer").value, prompt, stream: true, stream_options: { include_usage: true },
        temperature: Number($("temperature").value), max_tokens: Number($("tokens").value) }, controller.signal)
      let tokens = 0
      for await (const event of events(answer.body)) {
        if (event.error) throw new Error(event.error.message)
        if (event.choices?.[0]) more.append(event.choices[0].text)
        tokens = event.usage?.completion_tokens ?? tokens
      }
      const seconds = (performance.now() - started) / 1000
      $("write-facts").textContent = `${tokens} tokens, ${Math.round(tokens / seconds)} tokens/s`
    } catch (error) {
      $("write-facts").textContent = error.name === "AbortError" ? "Stopped." : error.message
    } finally {
      if (this.controller === controller) $("write-stop").hidden = true
    }
  }
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader()
  let rest = ""
  for (;;) {
    const { value, done } = await reader.read()
    if (done) return
    const parts = (rest + value).split("\n\n")
    rest = parts.pop()
    for (const part of parts) {
      const data = part.replace(/^data: /u, "")
      if (data !== "[DONE]") yield JSON.parse(data)
    }
  }
}

export class Fill {
  constructor(models) {
    this.models = models.masked
    $("filler").replaceChildren(...models.masked.map(own => make("option", { value: own.name, text: own.name })))
    $("fill-go").addEventListener("click", () => this.go())
  }

  async go() {
    const model = $("filler").value, text = $("gap").value
    const { heads } = this.models.find(own => own.name === model)
    $("fill-facts").textContent = "…"
    try {
      const rows = []
      if (heads.length) {
        const { predictions } = await ask("/classify", { model, text })
        if (predictions.value !== null) rows.push([predictions.value.toFixed(3), ""])
        else rows.push(...Object.entries(predictions.probabilities).sort((a, b) => b[1] - a[1]))
      } else {
        const { fillings } = await ask("/fill-mask", { model, text, topk: 8 })
        rows.push(...fillings.map(own => [own.text, own.probability]))
      }
      $("fillings").replaceChildren(...rows.map(([said, share]) =>
        make("li", { text: said }, make("small", { text: share === "" ? "" : ` ${(share * 100).toFixed(1)} %` }))))
      $("fill-facts").textContent = ""
    } catch (error) {
      $("fill-facts").textContent = error.message
    }
  }
}
