/* Runs a program and prints its peak memory in KiB.
 *
 * A process starts with the peak of the memory that it had before exec(2), which is its parent's while that waits in vfork(2). So
 * the parent must be small: this one, and not the program that measures.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    struct rusage usage;
    int status;
    pid_t child = argc > 1 ? vfork() : -1;
    if (child == 0) {
        int null = open("/dev/null", O_WRONLY);
        dup2(null, 1);
        execv(argv[1], argv + 1);
        _exit(127);
    }
    if (child < 0 || wait4(child, &status, 0, &usage) != child) {
        perror("peak");
        return 1;
    }
    printf("%ld", usage.ru_maxrss);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
