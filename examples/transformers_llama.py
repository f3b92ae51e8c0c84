"""Hugging Face's Llama with attention of linear cost: built from a config, trained on bytes of a
text, sampled with a cache whose size grows with the logarithm of the text.

    python3 examples/transformers_llama.py [steps [text file]]
"""
import pathlib
import sys

import torch
import transformers

import htransformer.transformers

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 200
FILE = sys.argv[2] if len(sys.argv) > 2 else pathlib.Path(__file__).parent.parent / "README.md"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTH, BATCH = 256, 4

htransformer.transformers.register()
torch.manual_seed(0)
config = transformers.LlamaConfig(
    vocab_size=256, hidden_size=64, intermediate_size=192, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, pad_token_id=0, bos_token_id=None,
    eos_token_id=None, htransformer={"block": 16})
model = transformers.AutoModelForCausalLM.from_config(
    config, attn_implementation="htransformer").to(DEVICE)
data = torch.tensor(list(pathlib.Path(FILE).read_bytes()))

optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(1, STEPS + 1):
    starts = torch.randint(0, len(data) - LENGTH, (BATCH,))
    x = torch.stack([data[i:i + LENGTH] for i in starts]).to(DEVICE)
    loss = model(x, labels=x, use_cache=False).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == STEPS:
        print("step %d, loss %.3f" % (step, loss.item()))

prompt = torch.tensor([list(b"The attention ")], device=DEVICE)
cache = htransformer.transformers.Cache()
said = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=120,
                      do_sample=True, temperature=0.8, past_key_values=cache)
print(bytes(said[0].tolist()).decode(errors="replace"))
print("rows of keys held per head: %d of %d" % (cache.layers[0].state.rows(0), said.shape[1] - 1))
