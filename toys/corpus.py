"""The text from which the toy tokenizer learns its merges: prose, code and JSON as agents send them."""

TEXT = """\
You are a careful assistant. Answer the question of the user in plain words, and say when you do not know.
The ferry leaves the harbour at seven in the morning and comes back in the evening, when the water is calm.
A cache keeps what was computed once, so that nobody has to compute it again. When the cache is wrong, the
answer is wrong, and that is worse than being slow. So we check every page before we use it.
She opened the window, looked at the garden, and counted the birds: one, two, three, four, and then a fifth.
There is a small town between the mountain and the river. The people there make bread, cheese and paper.
What time is it now? Where did you find the key? Who wrote this letter, and why was it never sent?
Please read the file, change the function, run the tests, and tell me which of them still fail.
The first part of the prompt is always the same; only the last message is new. Remember the first part.
If the number is larger than the limit, stop. Otherwise add it to the list and continue with the next number.
He had been walking for an hour before the rain began, and he was still far from the house of his brother.
Every state has a length. A state of thousand tokens says nothing about the state after hundred tokens.
They would have come earlier, but the train was late and the road was closed because of the snow.
It should be possible to restore the conversation after the machine was turned off and on again.
Once upon a time there lived an old clock maker who could hear the difference between two seconds.
The engine reads a block from the disk, verifies the checksum, and copies the rows into memory.
I think that the report is good, but the second table needs another column with the measured time.
Some things are better left alone. Other things want to be moved, cleaned, painted or thrown away.

def load_page(path, offset, size):
    with open(path, "rb") as file:
        file.seek(offset)
        data = file.read(size)
    if len(data) != size:
        raise ValueError("short read")
    return data

for index in range(0, 10):
    result = result + values[index] * weights[index]
    print(index, result)

{"type": "function", "function": {"name": "read_file", "description": "Read a text file",
 "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}}}
{"type": "function", "function": {"name": "search", "description": "Search the web for a query",
 "parameters": {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}}}}
{"role": "user", "content": "What is the weather in the north today?"}
{"role": "assistant", "content": null, "tool_calls": [{"id": "call_1", "arguments": "{}"}]}
{"role": "tool", "content": "12 degrees, light wind from the west, some clouds in the afternoon"}
"""
