/* Publishes a file, or standard input, as an execution of a streamdoor server.
 *
 *     produce DOOR NAME [FILE]
 *
 * Prints the execution's id first, so that somebody can read it, and then waits for the first
 * reader for a minute. The bytes are read straight into the ring: nothing copies them again.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../streamdoor.h"

static int complain(const char *what)
{
    fprintf(stderr, "produce: %s: %s\n", what, sd_error_text());
    return 1;
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc > 4) {
        fprintf(stderr, "usage: produce DOOR NAME [FILE]\n");
        return 2;
    }
    int input = argc == 4 ? open(argv[3], O_RDONLY) : STDIN_FILENO;
    if (input < 0) {
        fprintf(stderr, "produce: %s: %s\n", argv[3], strerror(errno));
        return 1;
    }
    if (sd_version() >> 16 != SD_VERSION_MAJOR) {
        fprintf(stderr, "produce: the library is of another version\n");
        return 1;
    }

    sd_door door;
    sd_writer writer;
    sd_produce_options options = SD_PRODUCE_OPTIONS_INIT;
    options.policy = SD_POLICY_BLOCK;
    options.ring_bytes = 1 << 20;
    options.hold_ms = 60 * 1000;
    if (sd_open(argv[1], NULL, &door) < 0 || sd_produce(door, argv[2], &options, &writer) < 0)
        return complain(argv[1]);

    char id[64];
    if (sd_writer_execution(writer, id, sizeof id) < 0)
        return complain("its id");
    printf("%s\n", id);
    fflush(stdout);

    size_t piece = 32 * 1024, most = (size_t)sd_chunk_bytes_max(writer);
    if (piece > most)
        piece = most;
    uint64_t bytes = 0, reported = 0;
    for (;;) {
        void *room;
        if (sd_lend(writer, piece, &room) < 0)
            return complain("lend");
        ssize_t count = read(input, room, piece);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0) {
            sd_fail(writer, strerror(errno)); /* Every reader is told. */
            return 1;
        }
        if (count == 0)
            break;
        if (sd_publish(writer, SD_OUTPUT, 0, (size_t)count, NULL) < 0)
            return complain("publish");
        bytes += (uint64_t)count;
        if (bytes - reported >= 16 << 20) {
            reported = bytes;
            sd_progress(writer, (double)bytes, 0, NULL);
        }
    }
    if (sd_complete(writer) < 0)
        return complain("complete");
    sd_close(door);
    return 0;
}
