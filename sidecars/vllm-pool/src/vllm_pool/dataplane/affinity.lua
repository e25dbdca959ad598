-- The key of a request that names no session: the messages up to the first turn of the
-- assistant, so that a conversation keeps its replica while it grows, else the prompt.
--
-- The body is not parsed. The scan jumps over strings and counts the brackets in between, over at
-- most WINDOW bytes; byte by byte, since LuaJIT compiles that and no search for a pattern. The
-- bytes themselves, encoded, become the key: Envoy hashes them, in native code.

local find, byte, sub = string.find, string.byte, string.sub
local WINDOW = 8192

-- Returns the end of the string whose opening mark is at `from`, or nil.
local function string_end(text, from)
  local at = from
  while true do
    at = find(text, '"', at + 1, true)
    if not at then return nil end
    -- A mark behind an odd number of backslashes belongs to the string.
    local back = at - 1
    while byte(text, back) == 92 do back = back - 1 end
    if (at - back) % 2 == 1 then return at end
  end
end

-- Returns the end of what is to be hashed of the array that opens at `from`: its last whole
-- element before the first one of the assistant.
local function elements_end(text, from)
  local depth, whole, at, last = 1, from, from + 1, #text
  while at <= last do
    local what = byte(text, at)
    if what == 34 then
      local stop = string_end(text, at)
      if not stop then return last end
      if depth == 2 and stop - at == 10 and sub(text, at, stop) == '"assistant"' then
        return whole
      end
      if depth == 1 then whole = stop end
      at = stop
    elseif what == 123 or what == 91 then
      depth = depth + 1
    elseif what == 125 or what == 93 then
      depth = depth - 1
      if depth == 1 then
        whole = at
      elseif depth < 1 then
        -- An array without elements that close (numbers) counts up to its bracket.
        return whole == from and at or whole
      end
    end
    at = at + 1
  end
  return last
end

local function key_of(body)
  local length = body:length()
  local text = body:getBytes(0, length < WINDOW and length or WINDOW)
  local _, name = find(text, '"messages"', 1, true)
  if not name then
    _, name = find(text, '"prompt"', 1, true)
    if not name then return nil end
  end
  local from = find(text, '[^%s:]', name + 1)
  if not from then return nil end
  if length > WINDOW and from > 1 then
    -- What stands before the value must not decide how much of it is looked at.
    local rest = length - from + 1
    text = body:getBytes(from - 1, rest < WINDOW and rest or WINDOW)
    from = 1
  end
  local first = byte(text, from)
  if first == 91 then
    return sub(text, from, elements_end(text, from))
  elseif first == 34 then
    return sub(text, from, string_end(text, from) or #text)
  end
  return nil
end

function envoy_on_request(handle)
  local body = handle:body()
  local key = body and body:length() > 0 and key_of(body)
  if key then
    -- No header may hold line ends, nor whatever else a prompt holds. The native encoding costs
    -- less than a look for such bytes by a pattern: 30 us of the processor for 8 KiB.
    handle:headers():add(":pool-key", handle:base64Escape(key))
  else
    handle:headers():add(":pool-no-key", "1")
    handle:clearRouteCache()
  end
end
