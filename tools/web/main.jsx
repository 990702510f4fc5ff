// A chat with an agent of streamdoor, with the React hook of AI SDK and nothing of our own: what the
// model says and what its tools put out are shown while they come.
//
//   npm install && npm run build
//   streamdoor model-script ../model-scripts/two-tools.toml &
//   streamdoor serve --model demo=chat,http://127.0.0.1:8809/v1,demo --agent-tools all \
//     --files-root ../.. --allow-commands uname --allow-commands wc \
//     --allow-origin http://127.0.0.1:8000 &
//   python3 -m http.server -b 127.0.0.1 8000        # and open http://127.0.0.1:8000
//
// The address of another server: http://127.0.0.1:8000/?server=http://127.0.0.1:8899
import { useChat } from "@ai-sdk/react";
import { DefaultChatTransport } from "ai";
import { useState } from "react";
import { createRoot } from "react-dom/client";

const asked = new URLSearchParams(location.search);
const server = asked.get("server") ?? "http://127.0.0.1:8808";
const api = `${server}/v1/agent/stream`;
const transport = new DefaultChatTransport({ api });

/** A call of a tool. Its output is there in pieces before it is there as a whole. */
function Tool({ part, pieces }) {
  const done = part.state === "output-available" && !part.preliminary;
  const output = done ? part.output : (pieces ?? part.output ?? "");
  const state = part.errorText ?? (done ? "done" : "running");
  return (
    <section className="tool" data-state={done ? "done" : "running"}>
      <code>
        {part.toolName} {JSON.stringify(part.input)}
      </code>{" "}
      <span className="state">{state}</span>
      <pre>{output}</pre>
    </section>
  );
}

function Part({ part, outputs }) {
  switch (part.type) {
    case "text":
      return <p className="text">{part.text}</p>;
    case "reasoning":
      return <p className="reasoning">{part.text}</p>;
    case "dynamic-tool":
      return <Tool part={part} pieces={outputs[part.toolCallId]} />;
    default:
      return null;
  }
}

function Chat() {
  const [outputs, setOutputs] = useState({});
  const [text, setText] = useState("");
  const { id, messages, sendMessage, status, stop, error } = useChat({
    transport,
    onData({ type, data }) {
      if (type !== "data-tool-output") return;
      const { toolCallId: id, delta } = data;
      setOutputs((before) => ({ ...before, [id]: (before[id] ?? "") + delta }));
    },
  });
  const halt = () => {
    stop(); // It reads no more; and the run is to go no further.
    fetch(`${api}/${encodeURIComponent(id)}`, { method: "DELETE" });
  };
  const isBusy = status === "submitted" || status === "streaming";
  const submit = (event) => {
    event.preventDefault();
    if (isBusy) return halt();
    if (text) sendMessage({ text });
    setText("");
  };
  return (
    <>
      {messages.map((message) => (
        <article key={message.id} className={message.role}>
          {message.parts.map((part, at) => (
            <Part key={at} part={part} outputs={outputs} />
          ))}
        </article>
      ))}
      {error && <p className="error">{error.message}</p>}
      <form onSubmit={submit} data-status={status}>
        <input value={text} onChange={(event) => setText(event.target.value)} autoFocus />
        <button>{isBusy ? "Stop" : "Ask"}</button>
      </form>
    </>
  );
}

createRoot(document.getElementById("chat")).render(<Chat />);
