"""The scripts that run inside the broker: each is one step of the queue that happens wholly or not at all.

All of them measure time by the broker's clock. Keys that depend on what a script finds, such as those of another
request, are built in it; a broker is one server, not a Redis Cluster (nor can kombu's transport use one).
"""

from drkernel_q.queue import keys

_NAMES = ("claim", "result", "waiters", "followers", "cancel")
_COMMON = "".join(f"local {name.upper()} = '{getattr(keys, name)('')}'\n" for name in _NAMES)
_COMMON += """
local function emit(id, streams, reply, length)
  for _, stream in ipairs(streams) do
    redis.call('XADD', stream, 'NOMKSTREAM', 'MAXLEN', '~', length, '*', 'for', id, 'reply', reply)
  end
end
local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local function known(content)
  local source = content ~= '' and redis.call('GET', content)
  return source and redis.call('GET', RESULT .. source) or ''
end
"""

# The nonce lets redis-py repeat a claim whose answer was lost without counting it twice.
# A live lease of the same owner is the worker's own dead pool child: a worker has one evaluation at a time.
# A claim that ended without a word cost a worker; one that was given back or failed did not.
# Who finds it held drops the message, so it is looked after again when that lease ends, however long it was to be left.
CLAIM = (
    _COMMON
    + """
local record, result, cancel, waiters, leases = unpack(KEYS)
local id, owner, nonce, lease_ms, most_deaths, ttl_s, length, task, list, request, content = unpack(ARGV)
local old = redis.call('HMGET', record, 'owner', 'expires_ms', 'attempt', 'fence', 'finished', 'nonce', 'state',
  'deaths', 'failed_by', 'avoid_ms')
local attempt, fence, deaths = tonumber(old[3]) or 0, tonumber(old[4]) or 0, tonumber(old[8]) or 0
local reply = redis.call('GET', result)
if reply or old[5] then
  if reply then emit(id, redis.call('SMEMBERS', waiters), reply, length) end
  redis.call('DEL', waiters)
  return {'finished', attempt, fence, ''}
end
if old[6] == nonce then return {old[7], attempt, fence, known(content)} end
local now = now_ms()
if old[1] and old[1] ~= owner and tonumber(old[2]) > now then
  local score = redis.call('ZSCORE', leases, id)
  if score and tonumber(score) > tonumber(old[2]) then redis.call('ZADD', leases, old[2], id) end
  return {'held', attempt, fence, ''}
end
if old[9] == owner and tonumber(old[10]) > now then return {'elsewhere', attempt, fence, ''} end
if old[7] == 'claimed' then deaths = deaths + 1 end
local before = known(content)
local state = 'claimed'
if redis.call('EXISTS', cancel) == 1 then
  state = 'cancelled'
elseif before ~= '' then
  state = 'known'
elseif deaths >= tonumber(most_deaths) then
  state = 'poisonous'
else
  attempt = attempt + 1
end
fence = fence + 1
local expires_ms = now + tonumber(lease_ms)
redis.call('HSET', record, 'owner', owner, 'expires_ms', expires_ms, 'attempt', attempt, 'fence', fence,
  'nonce', nonce, 'state', state, 'deaths', deaths, 'task', task, 'list', list, 'request', request)
redis.call('EXPIRE', record, ttl_s)
redis.call('ZADD', leases, expires_ms, id)
return {state, attempt, fence, before}
"""
)

EXTEND = (
    _COMMON
    + """
local record, leases = unpack(KEYS)
local id, fence, lease_ms, ttl_s = unpack(ARGV)
local old = redis.call('HMGET', record, 'fence', 'finished')
if old[1] ~= fence or old[2] then return 0 end
local expires_ms = now_ms() + tonumber(lease_ms)
redis.call('HSET', record, 'expires_ms', expires_ms)
redis.call('EXPIRE', record, ttl_s)
redis.call('ZADD', leases, expires_ms, id)
return 1
"""
)

# Its lease stays among those that are looked after, in case that the message is lost on its way back.
RELEASE = (
    _COMMON
    + """
local record, leases = unpack(KEYS)
local id, fence, again_ms = unpack(ARGV)
local old = redis.call('HMGET', record, 'fence', 'finished', 'state')
if old[1] ~= fence or old[2] then return 0 end
if old[3] == 'claimed' then redis.call('HINCRBY', record, 'attempt', -1) end
redis.call('HSET', record, 'expires_ms', 0, 'state', 'released', 'nonce', '')
redis.call('ZADD', leases, now_ms() + tonumber(again_ms), id)
return 1
"""
)

RETRY = (
    _COMMON
    + """
local record, leases, results, list = unpack(KEYS)
local id, fence, owner, most, avoid_ms, again_ms, request, reply, message = unpack(ARGV)
local old = redis.call('HMGET', record, 'fence', 'finished', 'failures', 'state')
if old[1] ~= fence or old[2] then return 'lost' end
if old[4] == 'failed' then return 'again' end
local failures = tonumber(old[3]) or 0
if failures >= tonumber(most) then return 'spent' end
redis.call('HSET', record, 'expires_ms', 0, 'state', 'failed', 'nonce', '', 'failures', failures + 1,
  'failed_by', owner, 'avoid_ms', now_ms() + tonumber(avoid_ms))
redis.call('ZADD', leases, now_ms() + tonumber(again_ms), id)
redis.call('XADD', results, '*', 'request', request, 'reply', reply)
redis.call('LPUSH', list, message)
return 'again'
"""
)

FINISH = (
    _COMMON
    + """
local record, result, waiters, results, leases, followers, poison = unpack(KEYS)
local id, fence, request, reply, stored, result_ttl_s, ttl_s, length, reply_to, content, poisonous = unpack(ARGV)
local old = redis.call('HMGET', record, 'fence', 'finished')
if old[2] then return old[2] == fence and 1 or 0 end
if old[1] ~= fence then return 0 end
redis.call('SET', result, reply, 'EX', result_ttl_s)
redis.call('XADD', results, '*', 'request', request, 'reply', stored)
if poisonous == '1' then redis.call('XADD', poison, 'MAXLEN', '~', 1000, '*', 'request', request, 'reply', reply) end
if reply_to ~= '' then redis.call('SADD', waiters, reply_to) end
emit(id, redis.call('SMEMBERS', waiters), reply, length)
redis.call('DEL', waiters)
redis.call('HSET', record, 'finished', fence)
redis.call('HDEL', record, 'request')
redis.call('EXPIRE', record, ttl_s)
redis.call('ZREM', leases, id)
if content ~= '' then redis.call('SET', content, id, 'EX', result_ttl_s) end
local others = redis.call('HGETALL', followers)
for i = 1, #others, 2 do
  local other, theirs = others[i], CLAIM .. others[i]
  local stream, asked = others[i + 1]:match('^(.-)\\n(.*)$')
  if not redis.call('HGET', theirs, 'finished') then
    redis.call('SET', RESULT .. other, reply, 'EX', result_ttl_s)
    redis.call('XADD', results, '*', 'request', asked, 'reply', reply, 'shared', '1')
    emit(other, {stream}, reply, length)
    redis.call('HSET', theirs, 'finished', 'shared')
    redis.call('EXPIRE', theirs, ttl_s)
    redis.call('ZREM', leases, other)
  end
end
redis.call('DEL', followers)
return 1
"""
)

# Answers with the claims whose lease ended some time ago, or with those of one owner. Those that have a reply, or came
# from no list, are looked after no more.
OVERDUE = (
    _COMMON
    + """
local leases = KEYS[1]
local margin_ms, most, owner = unpack(ARGV)
local until_ms = owner == '' and now_ms() - tonumber(margin_ms) or '+inf'
local found = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', until_ms, 'LIMIT', 0, most)) do
  local old = redis.call('HMGET', CLAIM .. id, 'fence', 'finished', 'task', 'list', 'request', 'owner')
  if not old[5] or old[4] == '' or old[2] then
    redis.call('ZREM', leases, id)
  elseif owner == '' or old[6] == owner then
    found[#found + 1] = {id, old[1], old[3], old[4], old[5]}
  end
end
return found
"""
)

# Looked after again in a while: the message may be lost once more before somebody claims it.
REVIVE = (
    _COMMON
    + """
local record, leases, list = unpack(KEYS)
local id, fence, margin_ms, again_ms, message = unpack(ARGV)
local old = redis.call('HMGET', record, 'fence', 'finished')
local score = redis.call('ZSCORE', leases, id)
local due = score and (margin_ms == '' or tonumber(score) <= now_ms() - tonumber(margin_ms))
if old[1] ~= fence or old[2] or not due then return 0 end
redis.call('ZADD', leases, now_ms() + tonumber(again_ms), id)
redis.call('LPUSH', list, message)
return 1
"""
)

# What is asked for may have been answered, or be on its way, for somebody else.
ADMIT = (
    _COMMON
    + """
local list, waiters, results, flight, own = unpack(KEYS)
local id, stream, message, ttl_s, result_ttl_s, urgency, request = unpack(ARGV)
if request ~= '' then
  local before = redis.call('GET', own)
  if before then return {'known', before, ''} end
  for i = 8, #ARGV do
    local reply = known(ARGV[i])
    if reply ~= '' then
      redis.call('SET', own, reply, 'EX', result_ttl_s)
      redis.call('XADD', results, '*', 'request', request, 'reply', reply, 'shared', '1')
      return {'known', reply, ''}
    end
  end
  local leader = redis.call('HMGET', flight, 'id', 'urgency', 'list')
  local other = leader[1]
  if other and other ~= id and tonumber(leader[2]) <= tonumber(urgency)
      and redis.call('EXISTS', CANCEL .. other) == 0
      and not redis.call('HGET', CLAIM .. other, 'finished')
      and (redis.call('EXISTS', CLAIM .. other) == 1 or redis.call('LLEN', leader[3]) > 0) then
    redis.call('HSET', FOLLOWERS .. other, id, stream .. '\\n' .. request)
    redis.call('EXPIRE', FOLLOWERS .. other, ttl_s)
    return {'joined', other, leader[3]}
  end
  redis.call('HSET', flight, 'id', id, 'urgency', urgency, 'list', list)
  redis.call('EXPIRE', flight, ttl_s)
end
redis.call('SADD', waiters, stream)
redis.call('EXPIRE', waiters, ttl_s)
return {'sent', redis.call('LPUSH', list, message), ''}
"""
)

# Nobody wants it any more when no client waits and no other request hopes for the same reply.
CANCEL = (
    _COMMON
    + """
local id, stream, ttl_s, leader = unpack(ARGV)
local function drop(unwanted)
  if redis.call('SCARD', WAITERS .. unwanted) > 0 or redis.call('HLEN', FOLLOWERS .. unwanted) > 0 then return end
  redis.call('SET', CANCEL .. unwanted, 1, 'EX', ttl_s)
end
redis.call('SREM', WAITERS .. id, stream)
drop(id)
if leader ~= '' then
  redis.call('HDEL', FOLLOWERS .. leader, id)
  drop(leader)
end
"""
)
