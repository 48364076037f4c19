// Package zmtp is as much of ZeroMQ as KV events need: the sockets SUB and DEALER for who
// listens, PUB and ROUTER for who publishes, over TCP with the NULL mechanism
// (ZMTP 3.1, https://rfc.zeromq.org/spec/37/, which peers of 3.0 speak as well).
//
// What comes from a peer is not trusted: messages are bounded in size and in frames, memory is
// taken for bytes that have come and not for those that are announced, a handshake has a time
// limit, a peer that says nothing is asked whether it is there, and a connection that is lost is an
// error at once. Nothing reconnects by itself, and nothing is queued without a bound.
package zmtp
