// Pages opened from a file may not start workers. The search then runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      const inner = frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.importScripts = () => {};
      const script = inner.document.createElement("script");
      script.src = url;
      script.onload = () => {
        this.inner = inner;
        for (const data of this.waiting) this.postMessage(data);
      };
      inner.document.documentElement.append(script);
    }
    postMessage(data) {
      if (this.inner) this.inner.dispatchEvent(new MessageEvent("message", { data }));
      else this.waiting.push(data);
    }
    terminate() {}
  };
}
