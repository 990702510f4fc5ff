// A client of the generated types. It only has to compile.
import type { components, paths } from "./api";

type Execute = paths["/v1/executions"]["post"]["requestBody"]["content"]["application/json"];
type Created = components["schemas"]["Created"];
type Listed = paths["/v1/executions"]["get"]["responses"]["200"]["content"]["application/json"];

export const body: Execute = { tool: "slow_data_processor", arguments: { chunks: 5 } };

export async function run(base: string): Promise<Created> {
  const headers = { "content-type": "application/json" };
  const init = { method: "POST", headers, body: JSON.stringify(body) };
  const response = await fetch(`${base}/v1/executions`, init);
  if (!response.ok) {
    const { error } = (await response.json()) as components["schemas"]["Error"];
    throw new Error(`${error.code}: ${error.message}`);
  }
  return (await response.json()) as Created;
}

export function dates(page: Listed): string[] {
  return page.executions.map((one) => `${one.created_at} ${one.ended_at ?? "runs"}`);
}
